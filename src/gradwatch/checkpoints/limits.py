"""What a checkpoint may ask for; everything is checked before memory is taken."""

MIB = 1 << 20

MAX_HEADER = 16 * MIB
"""Bytes of a safetensors or index header; real ones of 10^5 tensors stay below."""
MAX_TENSORS = 100_000
MAX_NAME = 4096
MAX_DIMS = 32
"""What numpy could always hold."""
MAX_COUNT = 1 << 48
"""Elements of one tensor."""
MAX_FILES = 10_000
MAX_ENTRIES = 100_000
"""Members of a zip archive."""
MAX_DIRECTORY = 64 * MIB
"""Bytes of a zip archive's central directory."""
MAX_PICKLE = 64 * MIB
MAX_OPCODES = 4_000_000
MAX_DEPTH = 256
"""Nesting of containers in a pickled checkpoint."""
MAX_EXPANSION = 20
"""A deflated archive may grow to this many times its size, or to a GiB if that is more."""
FREE_EXPANSION = 1 << 30
FREE_CLAIMS = 1 << 30
MAX_CLAIMS = 2
"""The tensors of a checkpoint, as large as they claim to be, may take so many bytes, and this many
times what is stored: an expanded tensor can claim anything."""
HOLES = 64
"""A file of which less than one part in this many is on the disk is refused as a sparse one."""

CPU_SECONDS = 20
STORED_PER_SECOND = 200_000_000
"""Processor time to read what a checkpoint holds: so many seconds, and one more for every so many
bytes that are really stored. A hostile file is small."""

BLOCK = 4 * MIB
"""Elements looked at in one go: they fit the last cache and keep the memory of a worker small."""
TASK_BYTES = 128 * MIB
"""What a worker process gets at once."""
ALONE_BYTES = 64 * MIB
"""Checkpoints up to this size are compared, or decomposed, in the calling process."""
MEASURED_ALONE = 8 << 30
"""And measured there, which takes a quarter of a second per GB: workers take longer to start."""
ROWS_LOOKED_AT = 1 << 20
"""Tensors with more rows than this are not examined row by row."""
COLUMNS_LOOKED_AT = 1 << 18
"""Rows longer than this are not examined column by column."""
SAMPLED_ROWS = 64
"""Rows, spread evenly, from which the norms of the columns of large tensors are estimated."""
SAMPLED_GROUPS = 2
"""Groups of 16 neighbouring columns, at both ends, from which the norms of the rows of large
tensors are estimated: neighbours share a line of the cache."""
WHOLE_BYTES = 1 << 18
"""Tensors up to this size are never sampled."""
