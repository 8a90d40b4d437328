"""What fits where, and what can be done to it: the household knowledge of ALFWorld, in its own type names.

The generator furnishes homes with it. The expert searches with it: receptacles are listed in the order in which it
pays to look into them (few places that hold much, before many that hold little and have to be opened).
"""

_FOOD = ("apple", "bread", "egg", "lettuce", "potato", "tomato")
_CUTLERY = ("butterknife", "fork", "knife", "ladle", "spatula", "spoon")
_DISHES = ("bowl", "cup", "mug", "plate")
_PANS = ("kettle", "pan", "pot")
_SHAKERS = ("peppershaker", "saltshaker")
_POCKET = ("cellphone", "creditcard", "keychain", "watch")
_PAPERWORK = ("book", "cd", "laptop", "newspaper", "pen", "pencil", "remotecontrol")
_WASHROOM = ("cloth", "dishsponge", "handtowel", "soapbar", "soapbottle", "spraybottle", "tissuebox", "toiletpaper")
_DECORATION = ("alarmclock", "box", "candle", "statue", "vase", "wateringcan")
_BOTTLES = ("glassbottle", "winebottle")
_SPORT = ("baseballbat", "basketball", "tennisracket")
_LAMPS = ("desklamp", "floorlamp")
_SEAT = ("book", "box", "cellphone", "creditcard", "keychain", "laptop", "newspaper", "pillow", "remotecontrol")

_TABLE = (*_POCKET, *_PAPERWORK, *_DECORATION, *_SPORT, *_LAMPS, "bowl", "mug", "plate", "tissuebox")
_KITCHEN_TABLE = (*_FOOD, *_CUTLERY, *_DISHES, *_PANS, *_SHAKERS, *_BOTTLES, *_WASHROOM)

FITS: dict[str, tuple[str, ...]] = {
    "handtowelholder": ("handtowel",),
    "towelholder": ("towel",),
    "bed": ("baseballbat", "basketball", "book", "cellphone", "laptop", "pillow", "teddybear", "tennisracket"),
    "stoveburner": _PANS,
    "diningtable": (*_TABLE, *_KITCHEN_TABLE),
    "desk": (*_TABLE, "cloth"),
    "coffeetable": _TABLE,
    "dresser": (*_TABLE, "soapbottle", "spraybottle", "toiletpaper", "cloth"),
    "countertop": (*_KITCHEN_TABLE, *_TABLE),
    "sidetable": (*_TABLE, *_KITCHEN_TABLE),
    "sofa": _SEAT,
    "tvstand": _TABLE,
    "cart": (*_WASHROOM, "candle"),
    "toilet": (*_WASHROOM, "candle"),
    "bathtubbasin": ("cloth", "dishsponge", "handtowel", "soapbar"),
    "ottoman": _SEAT,
    "fridge": (*_FOOD, *_DISHES, *_BOTTLES, "pan", "pot"),
    "coffeemachine": ("mug",),
    "toiletpaperhanger": ("toiletpaper",),
    "garbagecan": (*_FOOD, *_WASHROOM, "cd", "newspaper", "pen", "pencil", "winebottle"),
    "sinkbasin": (*_FOOD, *_CUTLERY, *_DISHES, *_PANS, "cloth", "dishsponge", "glassbottle", "handtowel", "soapbar"),
    "armchair": (*_SEAT, "cloth"),
    "microwave": (*_FOOD, *_DISHES, "glassbottle"),
    "safe": ("cd", "cellphone", "creditcard", "keychain", "statue", "vase"),
    "shelf": (*_TABLE, *_DISHES, *_SHAKERS, *_BOTTLES, *_WASHROOM, "kettle", "pot"),
    "cabinet": (*_DISHES, *_PANS, *_SHAKERS, *_BOTTLES, *_WASHROOM, *_DECORATION, "book", "cd", "ladle", "newspaper"),
    "drawer": (*_CUTLERY, *_SHAKERS, *_WASHROOM, *_POCKET, *_PAPERWORK, "candle", "wateringcan"),
    "laundryhamper": ("cloth",),
}

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
CLEANABLE = frozenset((*_FOOD, *_CUTLERY, *_DISHES, *_PANS, "cloth", "dishsponge", "soapbar")) - {"bread"}
HEATABLE = frozenset({"apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"})
COOLABLE = frozenset((*_FOOD, *_DISHES, "pan", "pot", "winebottle"))
SLICEABLE = frozenset(_FOOD)
TOGGLEABLE = frozenset(_LAMPS)
CONTAINERS = frozenset((*_DISHES, "box", "pan", "pot"))
