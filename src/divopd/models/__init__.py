"""Models at work: engines that generate and score, and what the learner needs of them."""

import os

# Torch asks Linux for large pages then. Large blocks of memory are given back after each use, and getting them again
# costs a fault a page: a tenth of an update of SmolLM2's size.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
