"""Two processes that save checkpoints together: each says how each save ended. Arguments: meeting place, folders."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from divopd.errors import CheckpointError
from divopd.run.checkpoints import save_checkpoint

if __name__ == "__main__":
    meeting, *folders = sys.argv[1:]
    child = os.fork()  # what both import is imported once
    rank = 0 if child else 1
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for folder in folders:
        try:
            save_checkpoint(Path(folder), update=3, model=model, optimizer=optimizer, state={})
            said = "saved"
        except CheckpointError as error:
            said = str(error)
        os.write(1, f"{rank} {said}\n".encode())  # in one piece: the other rank writes there, too
    dist.destroy_process_group()
    if child:
        os.waitpid(child, 0)
