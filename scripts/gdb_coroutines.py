"""The gdb command `cobt`: the stack of coroutines that await each other, innermost first.

    (gdb) source scripts/gdb_coroutines.py
    (gdb) cobt

`bt` ends at Asio's event loop, since a suspended coroutine has no frame on the thread's stack. `cobt` begins at the
coroutine that the selected thread runs and follows the pointers from each to the coroutine that awaits it. A program
with debug information is needed (--buildtype debug). Tried with clang 19, Boost 1.81 and gdb 13.
"""

import re

import gdb

RESUME = re.compile(r"^boost::asio::detail::awaitable_frame_base<.*>::resume")


def running_coroutine():
    """Returns the promise of the coroutine that the selected thread runs, or None."""
    frame = gdb.newest_frame()
    while frame is not None:
        if RESUME.match(frame.name() or ""):
            return frame.read_var("this")
        frame = frame.older()
    return None


def describe(promise):
    """Returns the name of a coroutine's function, and the file and line where it begins."""
    resume_function = promise["coro_"]["_M_fr_ptr"].cast(gdb.lookup_type("long").pointer()).dereference()
    address = int(resume_function)
    block = gdb.block_for_pc(address)
    name = block.function.print_name if block is not None and block.function is not None else hex(address)
    place = gdb.find_pc_line(address)
    return f"{name} at {place.symtab.filename}:{place.line}" if place.symtab is not None else name


class CoroutineBacktrace(gdb.Command):
    """Shows the stack of coroutines that await each other, innermost first."""

    def __init__(self):
        super().__init__("cobt", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        promise = running_coroutine()
        if promise is None:
            raise gdb.GdbError("This thread runs no coroutine: no frame of awaitable_frame_base::resume is on its stack.")
        number = 0
        while int(promise) != 0:
            print(f"#{number}  {describe(promise)}")
            promise = promise["caller_"]
            number += 1


CoroutineBacktrace()
