"""What waits for the writer's thread: in order and within its bytes."""

import numpy as np

from gradwatch.stats import Family, row_dtype
from gradwatch.store.queue import RECORD_ROWS, Queue, Rows

DTYPE = row_dtype(Family.UPDATE)


def put(queue: Queue, step: int, count: int = 4) -> None:
    ids = np.arange(count, dtype=np.uint32)
    queue.rows(3, step, ids, np.zeros(count, DTYPE), np.zeros(count, np.uint8))


def taken(queue: Queue) -> list[Rows]:
    rows = []
    while (item := queue.take_rows(1 << 40)) is not None:
        rows.append(item)
    return rows


def test_rows_come_out_in_the_order_they_went_in_and_are_not_copied() -> None:
    queue = Queue(1 << 20)
    rows = np.zeros(4, DTYPE)
    queue.rows(3, 0, np.arange(4, dtype=np.uint32), rows, np.zeros(4, np.uint8))
    put(queue, 1)
    first, second = taken(queue)
    assert first.rows is rows
    assert (first.step, second.step) == (0, 1)
    assert queue.used == 0
    assert queue.accepted == 2


def test_a_full_queue_gives_up_its_oldest_step_whole() -> None:
    queue = Queue(1000)
    for step in (0, 0, 1, 1, 2, 2, 3, 3):
        put(queue, step)
    steps = [rows.step for rows in taken(queue)]
    lost = queue.take_lost()
    assert steps == [0, 0, 1, 1, 2, 2, 3, 3][-len(steps) :]
    assert steps[-2:] == [3, 3]
    assert lost is not None
    assert (lost.records, lost.first_step) == (8 - len(steps), 0)
    assert steps[0] == lost.last_step + 1
    assert queue.dropped == lost.records
    assert queue.take_lost() is None


def test_rows_larger_than_the_whole_queue_are_counted_as_lost() -> None:
    queue = Queue(100)
    put(queue, 7, 50)
    assert not taken(queue)
    assert (queue.accepted, queue.dropped) == (1, 1)


def test_many_rows_become_several_records() -> None:
    queue = Queue(1 << 30)
    put(queue, 0, 3 * RECORD_ROWS)
    parts = taken(queue)
    assert all(len(part.rows) <= RECORD_ROWS for part in parts)
    ids = np.concatenate([part.ids for part in parts])
    assert ids.tolist() == list(range(3 * RECORD_ROWS))


def test_what_has_no_room_in_the_buffer_waits() -> None:
    queue = Queue(1 << 20)
    put(queue, 0)
    assert queue.take_rows(queue.waiting[0].length - 1) is None
    assert queue.take_rows(queue.waiting[0].length) is not None
