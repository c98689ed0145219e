"""The direction of imports, from the ground up: a module imports only from rows before its own."""

LAYERS = [
    {"errors", "version", "text", "mode"},
    {"jsonio", "files", "isolated", "notebook", "stats"},
    {"kernel"},
    {"graph", "finding", "result"},
    {"run"},
    {"store", "checkpoints", "original", "forward"},
    {"checks"},
    {"diagnosis"},
    {"analysis", "record"},
    {"live"},
    {"views"},
    {"server"},
    {"zoo"},
    {"integrations", "cli", "__init__"},
    {"__main__"},
]
TORCH_MAY_BE_IMPORTED_IN = {"record", "checkpoints", "integrations", "zoo", "live", "forward"}
