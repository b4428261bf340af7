#!/usr/bin/env python3
"""How much memory for arriving activations a stage wants: a model of one link, without a clock.

A stage computes micro-batches one after another into two output buffers; each travels when the link is free and the next
stage has memory for it; the next stage computes them in order and lets go of the memory after. Micro-batches are chunks
of a prompt, of size 0.5 to 1 and as long to compute, and decode steps of size 0.03 that take 0.2. Prints the time
against a stage with memory without bound, by the share of chunks and by how long a chunk travels: for memory in so many
slots of the largest size, and for a circle of so many times the largest size (src/sched/input_ring.h)."""

import argparse
import random


class Slots:
    def __init__(self, count):
        self.count, self.taken = count, 0

    def take(self, _size):
        if self.taken == self.count:
            return False
        self.taken += 1
        return True

    def release(self):
        self.taken -= 1


class RingBuffer:
    def __init__(self, length):
        self.length, self.pieces = length, []

    def take(self, size):
        begin = 0.0
        if self.pieces:
            oldest, (newest, end) = self.pieces[0][0], self.pieces[-1]
            if newest >= oldest and end + size <= self.length:
                begin = end
            elif newest >= oldest:
                if size > oldest:
                    return False
            elif end + size <= oldest:
                begin = end
            else:
                return False
        self.pieces.append((begin, begin + size))
        return True

    def release(self):
        self.pieces.pop(0)


def time_of(batches, transfer, memory):
    """Until the last of `batches` (size, seconds on one stage, seconds on the next) is computed."""
    computed, arrived, done = [], [], []
    held = 0  # the oldest micro-batch whose memory is taken
    for number, (size, here, there) in enumerate(batches):
        begin = computed[-1] if computed else 0.0
        if number >= 2:
            begin = max(begin, arrived[number - 2])
        computed.append(begin + here)
        begin = max(computed[-1], arrived[-1] if arrived else 0.0)
        while held < number and done[held] <= begin:
            memory.release()
            held += 1
        while not memory.take(size):
            begin = max(begin, done[held])
            memory.release()
            held += 1
        arrived.append(begin + transfer * size)
        done.append(max(arrived[-1], done[-1] if done else 0.0) + there)
    return done[-1]


def make_batches(dice, count, chunk_share):
    batches = []
    for _ in range(count):
        chunk = dice.random() < chunk_share
        size = dice.uniform(0.5, 1.0) if chunk else 0.03
        here = size if chunk else 0.2
        batches.append((size, here, here * dice.uniform(0.9, 1.1)))
    return batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000, help="micro-batches")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sizes = (1, 2, 3, 4)
    print("chunks  travel  " + "".join(f"{f'{size} slots':>10}" for size in sizes)
          + "".join(f"{f'circle {size}':>10}" for size in sizes))
    for transfer in (0.25, 0.5, 0.9):
        for share in (1.0, 0.5, 0.3, 0.1):
            batches = make_batches(random.Random(options.seed), options.count, share)
            unbounded = time_of(batches, transfer, Slots(options.count))
            times = [time_of(batches, transfer, kind(size)) for kind in (Slots, RingBuffer) for size in sizes]
            print(f"{share:>6.0%}{transfer:>8}  " + "".join(f"{time / unbounded:>10.3f}" for time in times))


if __name__ == "__main__":
    main()
