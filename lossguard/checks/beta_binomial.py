"""Beta-binomial counts per request: fit by moments, tail, and a tail that carries the uncertainty of the fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import FloatArray

SMALLEST_RHO = 1e-3
"""Intraclass correlation that a finite sample never excludes; without it one repeated near-tie looks impossible."""
_LARGEST_RHO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BetaBinomial:
    """Mean share and intraclass correlation, [M] fits."""

    share: FloatArray
    rho: FloatArray


def fit_by_moments(hits: FloatArray, trials: FloatArray) -> BetaBinomial:
    """Fits along the last axis. Half a hit is added, so that no share is 0.

    E sum (x - p n)^2 = p (1 - p) (sum n + rho sum n (n - 1)); rho is kept in [SMALLEST_RHO, 0.5].
    """
    trials = np.broadcast_to(trials, hits.shape)
    total = trials.sum(axis=-1)
    share = hits.sum(axis=-1) / np.maximum(total, 1.0)
    num_requests = hits.shape[-1]
    spread = np.square(hits - share[..., None] * trials).sum(axis=-1) * num_requests / max(num_requests - 1, 1)
    binomial = share * (1 - share)
    pairs = np.maximum((trials * (trials - 1)).sum(axis=-1), 1.0)
    rho = np.where(binomial > 0, (spread / np.where(binomial > 0, binomial, 1.0) - total) / pairs, 0.0)
    return BetaBinomial(share=(hits.sum(axis=-1) + 0.5) / (total + 1.0), rho=np.clip(rho, SMALLEST_RHO, _LARGEST_RHO))


def draw(fit: BetaBinomial, trials: FloatArray, generator: np.random.Generator) -> FloatArray:
    """[M, R] counts from each of M fits."""
    strength = (1 - fit.rho) / fit.rho
    shares = generator.beta(
        (fit.share * strength)[:, None], ((1 - fit.share) * strength)[:, None], size=(len(fit.share), len(trials))
    )
    return generator.binomial(trials.astype(np.int64), shares).astype(np.float64)


def bootstrap_fits(hits: FloatArray, trials: FloatArray, num_fits: int, seed: int) -> BetaBinomial:
    """[num_fits] refits to samples drawn from the fit to ``hits`` [R]: the fit's own uncertainty."""
    fit = fit_by_moments(hits, trials)
    many = BetaBinomial(share=np.full(num_fits, fit.share), rho=np.full(num_fits, fit.rho))
    return fit_by_moments(draw(many, trials, np.random.default_rng(seed)), trials)


def predictive_tail(hits: FloatArray, trials: FloatArray, fits: BetaBinomial) -> FloatArray:
    """[R] P(X >= hits | trials), averaged over the fits; equal (hits, trials) are computed once."""
    pairs, inverse = np.unique(np.stack([hits, trials]), axis=1, return_inverse=True)
    return np.asarray(tails(pairs[0], pairs[1], fits).mean(axis=0)[inverse.reshape(-1)])


def tails(hits: FloatArray, trials: FloatArray, fits: BetaBinomial) -> FloatArray:
    """[M, U] P(X >= hits | trials) under each of M fits; hits and trials are [U] for all, or [M, U].

    Sums the probability mass with its ratio recursion.
    """
    strength = ((1 - fits.rho) / fits.rho)[:, None]
    alpha = fits.share[:, None] * strength
    beta = strength - alpha
    mass = np.exp(_log_mass_at(hits, trials, alpha, beta))
    tail = np.zeros_like(mass)
    # upwards from the observed count: terms fall off, so tiny tails keep their relative precision
    for step in range(int((trials - hits).max(initial=0)) + 1):
        tail += mass
        count = hits + step
        left = np.maximum(trials - count, 0.0)
        mass = mass * left / (count + 1) * (alpha + count) / np.maximum(beta + left - 1, 1e-300)
        if not (mass > 1e-12 * tail).any():
            break
    return np.where(hits <= 0, 1.0, np.minimum(tail, 1.0))


def _log_mass_at(hits: FloatArray, trials: FloatArray, alpha: FloatArray, beta: FloatArray) -> FloatArray:
    from scipy.special import betaln

    choose = -betaln(trials - hits + 1, hits + 1) - np.log(trials + 1)
    return np.asarray(choose + betaln(hits + alpha, trials - hits + beta) - betaln(alpha, beta))
