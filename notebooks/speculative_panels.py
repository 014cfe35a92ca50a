"""Figures of the notebook on speculative rollouts, which draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from checked_panels import Picture, picture

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREEN, GREY = COLORS[0], COLORS[3], COLORS[4], COLORS[5], "#888888"
Path = tuple[int, ...]
LEVELS = 3
POLICIES = {  # budget: color, dash, marker, width, opacity; the one that the best often covers is wide and pale
    "fixed": (ORANGE, "--", "^", 1.4, 1.0),
    "by concurrency": (BLUE, "-", "o", 5.0, 0.4),
    "best": (BLACK, "-", "s", 1.4, 1.0),
}


def tree(root: int, chance: Mapping[Path, float], walked: Path, drawn: int, title: str) -> Picture:
    """Draw a tree of candidates: on each node its token and the target's probability of reaching it; the walk is heavy.

    Parameters
    ----------
    root : int                     last token of the response
    chance : dict path -> target probability of the path, parents before children
    walked : path                  candidates that were accepted
    drawn : int                    the token that was drawn after them
    """
    leaves = [h for h in chance if not any(other[:-1] == h for other in chance)]
    leaves.sort(key=lambda h: [list(chance).index(h[: k + 1]) for k in range(len(h))])
    height = {h: float(len(leaves) - i) for i, h in enumerate(leaves)}
    for h in sorted(chance, key=len, reverse=True):
        below = [height[other] for other in chance if other[:-1] == h]
        height.setdefault(h, sum(below) / max(len(below), 1))
    top = [height[h] for h in chance if len(h) == 1]
    height[()] = sum(top) / max(len(top), 1)
    with drawing("page", max(1.6, 0.34 * len(leaves) + 0.7)) as (figure, ax):
        for h in chance:
            on = walked[: len(h)] == h
            ax.plot([len(h) - 1, len(h)], [height[h[:-1]], height[h]], color=BLUE if on else GREY,
                    linewidth=3 if on else 0.8, zorder=1)  # fmt: skip
        stop = height[walked] if walked in height else height[()]
        end = len(walked)
        ax.plot([end, end + 0.42], [stop, stop + 0.02], color=ORANGE, linewidth=3, linestyle=":", zorder=1)
        texts = [((), f"root: {root}"), *[(h, f"{h[-1]}:  {p:.3f}") for h, p in chance.items()]]
        for h, words in texts:
            on = h == () or walked[: len(h)] == h
            box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": BLUE if on else GREY}
            ax.text(len(h), height[h], words, ha="center", va="center", fontsize=7, bbox=box)
        box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": ORANGE}
        ax.text(end + 0.5, stop + 0.02, f"{drawn}", ha="center", va="center", fontsize=7, bbox=box)
        ax.set(xlim=(-0.4, LEVELS + 0.7), ylim=(0.3, len(leaves) + 0.9), xticks=range(LEVELS + 1), yticks=[])
        ax.set_xticklabels(["root", *[f"depth {k}" for k in range(1, LEVELS + 1)]])
        ax.grid(False)
        ax.spines["left"].set_visible(False)
        ax.set_title(title)
        return picture(figure)


def wrong_rules(shifts: Sequence[float], reuse: Sequence[float], at: tuple[float, float],
                redraws: Mapping[float, float], chosen: float, titles: tuple[str, str]) -> Picture:  # fmt: skip
    """Draw what two wrong rules cost: reusing a token against how far its author is, drawing twice against the mass drafted.

    Parameters
    ----------
    shifts, reuse : distance of the earlier policy, and total variation of one token; `at` is the chosen point
    redraws : dict target mass of a set of candidates -> total variation; `chosen` is the chosen mass
    """
    with drawing("page", 2.7, ncols=2) as (figure, axes):
        axes[0].plot(shifts, reuse, color=ORANGE, label="goes on from the policy (SPEC-RL)")
        axes[0].plot(shifts, [0.0] * len(shifts), color=BLACK, linestyle="--", label="goes on from the residual")
        axes[0].plot(*at, "o", color=ORANGE, markersize=7)
        axes[0].set(xlabel="how far the earlier policy is", ylabel="total variation of one token", xlim=(0, 1.02))
        axes[0].set(ylim=(-0.005, 0.2), title=titles[0])
        axes[0].legend(loc="upper left")
        mass = torch.linspace(0, 1, 101)
        axes[1].plot(mass, mass * (1 - mass), color=BLUE, label="mass times the rest")
        axes[1].plot(list(redraws), list(redraws.values()), "o", color=BLUE, markersize=4, label="sets of candidates")
        axes[1].plot(chosen, redraws[chosen], "s", color=BLACK, markersize=7)
        axes[1].set(xlabel="target mass m of the candidates", xlim=(0, 1), ylim=(-0.006, 0.34), title=titles[1])
        axes[1].legend(loc="upper right", ncols=2)
        return picture(figure)


def two_parts(lengths: Mapping[str, tuple[float, float]]) -> Picture:
    """Draw how long the update of the first token and of the later ones is, a pair of bars per engine."""
    with drawing("page", 2.3) as (figure, ax):
        for place, pair in enumerate(lengths.values()):
            for shift, value, color, hatch in zip((-0.19, 0.19), pair, (BLUE, ORANGE), ("", "////"), strict=True):
                ax.barh(place + shift, value, 0.36, color=color, hatch=hatch, edgecolor="white")
                ax.text(value + 0.01, place + shift, f"{value:.3f}", va="center", fontsize=7)
        ax.set_yticks(range(len(lengths)), list(lengths))
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_axisbelow(True)
        for label, color, hatch in (("first token", BLUE, ""), ("later tokens", ORANGE, "////")):
            ax.bar(0, 0, color=color, hatch=hatch, edgecolor="white", label=label)
        ax.set_xlabel("length of the expected update")
        ax.set_xlim(0, 1.35 * max(max(pair) for pair in lengths.values()))
        ax.legend(loc="lower right")
        return picture(figure)


def concurrency(active: Sequence[int], gains: Mapping[str, Sequence[float]], counts: Mapping[str, Sequence[int]],
                marked: int, title: str) -> Picture:  # fmt: skip
    """Draw speed over that without drafts, and the number of candidates, against the number of unfinished responses."""
    with drawing("page", 2.8, ncols=2) as (figure, axes):
        for name, (color, dash, marker, width, alpha) in POLICIES.items():
            look = {
                "color": color,
                "linestyle": dash,
                "marker": marker,
                "markersize": 4,
                "linewidth": width,
                "alpha": alpha,
            }
            axes[0].plot(active, gains[name], label=name, **look)
            axes[1].plot(active, counts[name], **look)
        for ax in axes:
            ax.set_xscale("log", base=2)
            ax.set_xticks(active, [str(b) for b in active])
            ax.minorticks_off()
            ax.axvline(marked, color=GREY, linewidth=0.8, zorder=0)
            ax.set_xlabel("unfinished responses B")
        axes[0].axhline(1, color=GREY, linewidth=0.8)
        axes[0].set(ylabel="speed, times that without drafts", ylim=(0, None), title=title)
        axes[1].set(ylabel="candidates per response", ylim=(-0.5, None))
        figure.legend(loc="outside lower center", ncols=3)
        return picture(figure)


def staircase(seconds: Mapping[int, Sequence[float]], written: Sequence[float]) -> Picture:
    """Draw measured pass times, relative to one token per response, with the tokens that a round writes."""
    with drawing("page", 2.8) as (figure, ax):
        size = range(1, len(written) + 1)
        for (b, row), color, dash, marker in zip(
            seconds.items(), (BLUE, GREEN, ORANGE), ("-", "-.", "--"), "os^", strict=True
        ):
            ax.plot(
                size,
                [t / row[0] for t in row],
                color=color,
                linestyle=dash,
                marker=marker,
                markersize=4,
                label=f"B = {b}",
            )
        ax.plot(size, written, color=BLACK, linewidth=2.2, label="tokens written per pass (exact)")
        ax.set(xlabel="tokens in the pass, per response", ylabel="times one token", ylim=(0, None))
        ax.set_title("Where the black line lies above a colored one, drafting pays on this machine")
        ax.legend(loc="upper left")
        return picture(figure)
