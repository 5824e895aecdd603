"""The stream of samples, which makes the mathematics independent of the number of workers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from training.data.dataset import Stream, share

SIZES = st.integers(1, 50)


@given(SIZES, st.integers(0, 2**31 - 1), st.lists(st.integers(0, 120), max_size=6))
def test_any_cut_of_the_stream_gives_the_same_stream(size: int, seed: int, cuts: list[int]) -> None:
    whole = Stream(size, seed).rows(0, 150)
    stream = Stream(size, seed)
    for start in cuts:
        assert stream.rows(start, 30).tolist() == whole[start : start + 30].tolist()


@given(SIZES, st.integers(0, 2**31 - 1))
def test_each_pass_sees_every_sample_once_and_passes_differ(size: int, seed: int) -> None:
    epochs_trained = Stream(size, seed).rows(0, 3 * size).reshape(3, size)
    for one in epochs_trained:
        assert sorted(one) == list(range(size))
    if size > 20:
        assert not np.array_equal(epochs_trained[0], epochs_trained[1])


@given(st.integers(0, 300), st.integers(1, 40))
def test_shares_are_the_whole_batch_without_overlap_and_nearly_equal(count: int, members: int) -> None:
    parts = [list(range(count))[share(count, rank, members)] for rank in range(members)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
