"""The learning rate as a function of time: it has no state, so a resumed run has the rates of an uninterrupted one."""

from __future__ import annotations

import math

ONE_CYCLE_RISE = 0.3  # share of the run in which one-cycle rises, and the divisors of its first and last rate
ONE_CYCLE_START = 25.0
ONE_CYCLE_END = 1e4


def learning_rate(schedule: str, peak: float, time: float, epochs: int, warmup_epochs: int = 0) -> float:
    """The rate at `time` epochs after the start (2.5 is the middle of the third epoch).

    * `constant`: the peak.
    * `cosine`: half a cosine from the peak to 0, stepped once an epoch (Loshchilov & Hutter 2017, without restarts);
      the values are those of `CosineAnnealingLR(T_max=epochs - warmup_epochs)`.
    * `onecycle`: a cosine up from peak/25 in the first 30 % of the run, then down to peak/250,000, stepped every batch
      (Smith & Topin 2018). In N steps these are the first N values of `OneCycleLR` with N + 1 steps, whose rise ends
      after 0.3 N.

    `warmup_epochs` of `constant` and `cosine` rise in equal steps, one an epoch: peak/(w+1), 2 peak/(w+1), ...
    """
    if schedule == "onecycle":
        rise = ONE_CYCLE_RISE * epochs
        if time < rise:
            return _cosine_between(peak / ONE_CYCLE_START, peak, time / rise)
        return _cosine_between(peak, peak / ONE_CYCLE_START / ONE_CYCLE_END, (time - rise) / (epochs - rise))
    epoch = math.floor(time)
    if epoch < warmup_epochs:
        return peak * (epoch + 1) / (warmup_epochs + 1)
    if schedule == "constant":
        return peak
    return _cosine_between(peak, 0.0, (epoch - warmup_epochs) / (epochs - warmup_epochs))


def _cosine_between(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
