"""Measures for how long other programs and other guests of the host kept the processors busy."""

import os
import subprocess
import sys
import threading
import time

INTERVAL_S = 0.005


class StolenTime:
    """A process that keeps waking on every processor, as a context manager. Afterwards `seconds` is the sum of its
    delays on the processor with the largest sum."""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()  # the process has begun to watch
        return self

    def __exit__(self, *_):
        self.seconds = float(self.process.communicate()[0])


def watch(processor, over, late):
    os.sched_setaffinity(0, {processor})  # binds this thread
    planned = time.monotonic() + INTERVAL_S
    while not over.is_set():
        time.sleep(max(0, planned - time.monotonic()))
        now = time.monotonic()
        late[processor] = late.get(processor, 0) + now - planned
        planned = now + INTERVAL_S


def main():
    over, late = threading.Event(), {}
    threads = [threading.Thread(target=watch, args=(each, over, late)) for each in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    print("watching", flush=True)
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    print(max(late.values()))


if __name__ == "__main__":
    main()
