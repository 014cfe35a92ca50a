"""Choosers with one wish, for tests of rules that draw."""

import torch


class Always:
    """Answers with one index wherever it has a positive probability, and remembers what it was asked."""

    def __init__(self, index):
        self.index = index
        self.asked = []

    def choose(self, probs, key=None):
        self.asked.append((probs, key))
        other = torch.full((len(probs),), 1 - self.index)
        return torch.where(probs[:, self.index] > 0, torch.full_like(other, self.index), other)
