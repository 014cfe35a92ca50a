"""Who writes the next token of each response, and with what law: one open decoder per policy and segment."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.policies.base import Decoder, Policy
from testbed.policies.schedule import Schedule


class Writers:
    """The behaviors of a schedule with an open decoder each.

    A policy that writes two segments has two decoders: what it saw as the writer of one is not kept for the other, as in
    an engine that drops its cache when it swaps weights. Branches of a random schedule share decoders, since a response
    belongs to one branch.

    Parameters
    ----------
    schedule : PrefixSchedule or ExogenousSchedule
    branch : Int64[Tensor, " n"]    realization of the schedule's noise that each response follows
    group : Int64[Tensor, " n"]     prompt of each response

    Examples
    --------
    >>> from testbed import PrefixSchedule, TabularPolicy, cuts
    >>> mus = [TabularPolicy.from_probs(torch.tensor([p, p, p])) for p in ([0.5, 0.5], [0.2, 0.8])]
    >>> writers = Writers(PrefixSchedule(mus, cuts([1])), torch.tensor([0, 0]), torch.tensor([0, 0]))
    >>> label, law = writers.next_laws(torch.tensor([1]), torch.tensor([[1]]))
    >>> label.tolist(), law.exp()
    ([1], tensor([[0.2000, 0.8000]], dtype=torch.float64))
    """

    def __init__(self, schedule: Schedule, branch: Int64[Tensor, " n"], group: Int64[Tensor, " n"]) -> None:
        self.schedules = [realized for _, realized in schedule.branches()]
        self.branch, self.group, self.vocab_size = branch, group, schedule.vocab_size
        self.desks: list[tuple[int, Policy]] = []  # a segment and its policy
        self.decoders: dict[int, Decoder] = {}  # by desk; opened when the first response arrives
        known: dict[tuple[int, int], int] = {}
        longest = max(len(realized.policies) for realized in self.schedules)
        desk_of = []
        for realized in self.schedules:
            places = []
            for segment, policy in enumerate(realized.policies):
                place = known.setdefault((segment, id(policy)), len(self.desks))
                if place == len(self.desks):
                    self.desks.append((segment, policy))
                places.append(place)
            desk_of.append(places + [-1] * (longest - len(places)))
        self.desk_of = torch.tensor(desk_of)  # [branch, segment]

    def next_laws(
        self, rows: Int64[Tensor, " b"], prefix: Int64[Tensor, "b t"]
    ) -> tuple[Int64[Tensor, " b"], Float[Tensor, "b V"]]:
        """Return the segment of each row's next token and the log-probabilities of its writer, float64.

        Raises
        ------
        InputError   a schedule that breaks its rules
        """
        label = self._labels(rows, prefix)
        if len(self.desks) == 1:
            return label, self._ask(0, rows, prefix)
        desk = self.desk_of[self.branch[rows], label]
        present = torch.unique(desk).tolist()
        if len(present) == 1:
            return label, self._ask(present[0], rows, prefix)
        log_probs = torch.empty(len(rows), self.vocab_size, dtype=torch.float64)
        for place in present:
            here = torch.nonzero(desk == place)[:, 0]
            log_probs[here] = self._ask(place, rows[here], prefix[here])
        return label, log_probs

    def _labels(self, rows: Tensor, prefix: Tensor) -> Int64[Tensor, " b"]:
        if len(self.schedules) == 1:
            return self.schedules[0].segments(prefix)
        branch = self.branch[rows]
        label = torch.empty_like(branch)
        for number in torch.unique(branch).tolist():
            here = torch.nonzero(branch == number)[:, 0]
            label[here] = self.schedules[number].segments(prefix[here])
        return label

    def _ask(self, place: int, rows: Tensor, prefix: Tensor) -> Float[Tensor, "b V"]:
        with torch.no_grad():
            if place not in self.decoders:
                self.decoders[place] = self.desks[place][1].decoder(self.group)
            return self.decoders[place].next_log_probs(prefix, rows).to(prefix.device, torch.float64)
