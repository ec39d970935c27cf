"""The mean of long vectors, taken block by block, and freed memory that stays with a worker."""

import ctypes

import pytest
import torch

from pfeddsh.federation.allocation import keep_freed_memory
from pfeddsh.mechanisms import averaging


@pytest.mark.parametrize("length", [1, 1000, averaging.BLOCK, 2 * averaging.BLOCK + 7])
def test_it_is_the_weighted_mean_however_long(length):
    vectors = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    shares = torch.tensor([0.5, 0.2, 0.3])
    expected = (shares.double() @ vectors.double()).float()
    assert torch.allclose(averaging.mean(vectors, shares), expected, atol=1e-6)
    assert torch.equal(averaging.mean(list(vectors), shares), averaging.mean(vectors, shares))


def test_of_equal_vectors_it_is_that_vector_to_the_bit():
    vector = torch.randn(averaging.BLOCK + 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(averaging.mean([vector] * 3, torch.tensor([0.1, 0.2, 0.7])), vector)


def test_where_there_is_no_glibc_memory_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_freed_memory()


def test_with_glibc_every_setting_is_taken(monkeypatch):
    taken = []

    class Library:
        @staticmethod
        def mallopt(name, value):
            taken.append(name)
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    keep_freed_memory()
    assert sorted(taken) == [-8, -4, -1]
