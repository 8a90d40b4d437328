"""The store of a run: its queue, its journal and its recording. SQL is in this folder only.

Explorers and teachers hold a Queue, Questions and Calls, the learner a Ledger, an evaluator Evaluations (faces.py);
Store, a SQLite file, is all of them. Reports and audits read with a StoreReader, pages with StoreViews.
"""

from divopd.store.calls import CallAttempt, count_incomplete, program_figures, read_attempts
from divopd.store.faces import WRONG_ANSWER, Calls, Evaluations, Ledger, Questions, Queue
from divopd.store.journal import Account, Arrived, Decided, JournaledBatch, JournalEntry, Key, StoredTurn
from divopd.store.questions import Answer, Question
from divopd.store.reader import StoreReader
from divopd.store.schema import is_store, store_path
from divopd.store.sqlite import Store
from divopd.store.views import StoreViews

__all__ = [
    "WRONG_ANSWER",
    "Account",
    "Answer",
    "Arrived",
    "CallAttempt",
    "Calls",
    "Decided",
    "Evaluations",
    "JournalEntry",
    "JournaledBatch",
    "Key",
    "Ledger",
    "Question",
    "Questions",
    "Queue",
    "Store",
    "StoreReader",
    "StoreViews",
    "StoredTurn",
    "count_incomplete",
    "is_store",
    "program_figures",
    "read_attempts",
    "store_path",
]
