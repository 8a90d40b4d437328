"""WebShop in plain Python: the products, pages, search, goals and reward of the benchmark, and an expert for it."""

from divopd.environments.webshop.catalogue import Product, read_catalogue
from divopd.environments.webshop.engine import Shop, WebShop, open_shop, stock_shop
from divopd.environments.webshop.expert import Expert
from divopd.environments.webshop.goals import EVALUATION_TASKS, HORIZON, TEST_GOALS, Goal
from divopd.environments.webshop.pages import FULL, SHORT, Layout
from divopd.environments.webshop.synthetic import make_catalogue

__all__ = [
    "EVALUATION_TASKS",
    "FULL",
    "HORIZON",
    "SHORT",
    "TEST_GOALS",
    "Expert",
    "Goal",
    "Layout",
    "Product",
    "Shop",
    "WebShop",
    "make_catalogue",
    "open_shop",
    "read_catalogue",
    "stock_shop",
]
