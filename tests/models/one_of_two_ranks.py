"""One of two processes that save a checkpoint together: says how it ended. Arguments: rank, meeting place, folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from divopd.errors import CheckpointError
from divopd.run.checkpoints import save_checkpoint

if __name__ == "__main__":
    rank, meeting, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        model = torch.nn.Linear(2, 2)
        save_checkpoint(folder, update=3, model=model, optimizer=torch.optim.AdamW(model.parameters()), state={})
        print("saved")
    except CheckpointError as error:
        print(error)
    dist.destroy_process_group()
