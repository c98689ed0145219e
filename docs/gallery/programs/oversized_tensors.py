import torch

torch.manual_seed(0)
state = torch.nn.Linear(64, 5).state_dict()
mask = torch.ones(64, 64).tril()
state["mask"] = mask.expand(128, 1024, 64, 64)  # fix: state["mask"] = mask
torch.save(state, "model.pt")
