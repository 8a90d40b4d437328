"""One of two processes that save checkpoints together: says how each ended. Arguments: rank, meeting place, folders."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from divopd.errors import CheckpointError
from divopd.run.checkpoints import save_checkpoint

if __name__ == "__main__":
    rank, meeting, *folders = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for folder in folders:
        try:
            save_checkpoint(Path(folder), update=3, model=model, optimizer=optimizer, state={})
            print("saved", flush=True)
        except CheckpointError as error:
            print(error, flush=True)
    dist.destroy_process_group()
