"""What the machine did while a benchmark ran. A figure that was taken while the host kept the processors says little."""

import atexit
from pathlib import Path

BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq
IDLE = (3, 4)           # idle, iowait
STOLEN = 7


def ticks():
    return [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]


def shares(before, after):
    """The parts of the processors' time that were used and that another guest of the host had instead."""
    spent = [late - early for early, late in zip(before, after)]
    busy = sum(spent[place] for place in BUSY)
    whole = max(busy + sum(spent[place] for place in IDLE) + spent[STOLEN], 1)
    return busy / whole, spent[STOLEN] / whole


def print_load_at_exit():
    begin = ticks()

    def print_load():
        busy, stolen = shares(begin, ticks())
        print(f"meanwhile all processors together: {100 * busy:.0f} % busy, {100 * stolen:.1f} % stolen by the host", flush=True)

    atexit.register(print_load)
