"""Final sampling distributions, computed with numpy in f64, for checking a sampler without drawing from it.

Order: logit bias, repetition, frequency, presence; then greedy, or temperature, min_p, top_k, top_p.
"""

import numpy as np

VOCAB = 512
SMALLEST = 1e-10
CLEARANCE = 5e-5

DEFAULTS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": {},
}

CASES: list[dict] = [
    {},
    {"temperature": 0.0},
    {"temperature": 1e-6, "top_k": 5, "top_p": 0.5},
    {"temperature": 0.7},
    {"temperature": 1.7},
    {"temperature": 0.05},
    {"top_k": 1},
    {"top_k": 10},
    {"top_k": 512},
    {"top_k": 100000},
    {"top_p": 0.9},
    {"top_p": 0.5},
    {"top_p": 0.01},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"min_p": 1.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.1, "top_k": 30},
    {"temperature": 0.6, "min_p": 0.02, "top_k": 20, "top_p": 0.95},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "top_k": 50},
    {"frequency_penalty": 0.6},
    {"presence_penalty": 1.1},
    {"frequency_penalty": -0.8, "presence_penalty": -0.5},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 2.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    {"logit_bias": {"17": 5.0, "300": -100.0}},
    {"logit_bias": {"511": 100.0}},
    {"temperature": 0.0, "logit_bias": {"42": 50.0}},
    {"logit_bias": {"0": 8.0, "5": 8.5}, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "logit_bias": {"7": 3.0},
    },
]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def penalise(logits: np.ndarray, params: dict, prompt: list[int], output: list[int]) -> np.ndarray:
    """Logits [vocab] after bias and penalties."""
    x = logits.astype(np.float64)
    for token, bias in params["logit_bias"].items():
        x[int(token)] += bias
    seen = np.array(sorted(set(prompt) | set(output)), dtype=int)
    r = params["repetition_penalty"]
    x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    counts = np.bincount(np.array(output, dtype=int), minlength=len(x))
    return x - params["frequency_penalty"] * counts - params["presence_penalty"] * (counts > 0)


def keep_min_p(x: np.ndarray, min_p: float) -> np.ndarray:
    p = softmax(x)
    ratio = p / p.max()
    assert min_p in (0, 1) or np.abs(ratio - min_p).min() > CLEARANCE, "min_p too close to a tie"
    return np.where(ratio < min_p, -np.inf, x)


def keep_top_k(x: np.ndarray, k: int) -> np.ndarray:
    """Values equal to the k-th survive."""
    if k <= 0 or k >= len(x):
        return x
    return np.where(x < np.sort(x)[-k], -np.inf, x)


def keep_top_p(x: np.ndarray, top_p: float) -> np.ndarray:
    """Drops the smallest values while their cumulative probability is at most 1 - top_p; the largest always stays."""
    if top_p >= 1:
        return x
    order = np.argsort(x, kind="stable")
    cumulative = np.cumsum(softmax(x)[order])
    assert np.abs(cumulative[:-1] - (1 - top_p)).min() > CLEARANCE, "top_p too close to a tie"
    dropped = order[:-1][cumulative[:-1] <= 1 - top_p]
    x = x.copy()
    x[dropped] = -np.inf
    return x


def distribution(logits: np.ndarray, params: dict, prompt: list[int], output: list[int]) -> np.ndarray:
    """Probabilities [vocab] from which the next token is drawn; one-hot when greedy."""
    x = penalise(logits, params, prompt, output)
    if params["temperature"] < 1e-5:
        return np.eye(len(x))[int(np.argmax(x))]
    x = x / params["temperature"]
    return softmax(keep_top_p(keep_top_k(keep_min_p(x, params["min_p"]), params["top_k"]), params["top_p"]))


def make_sampling() -> dict:
    """The content of sampling.json."""
    rng = np.random.default_rng(2026)
    smooth = (2.5 * rng.standard_normal((3, VOCAB))).astype(np.float32)
    smooth[1] *= 2
    smooth[2] -= 20
    ties = (np.round(rng.standard_normal(VOCAB) * 4) / 2).astype(np.float32)
    vectors = [np.float32([float(f"{v:.7g}") for v in row]) for row in (*smooth, ties)]
    ties_index = len(vectors) - 1

    plan = [(i, case) for i in range(2) for case in CASES] + [(2, case) for case in CASES[20:]]
    plan += [(ties_index, case) for case in ({}, {"top_k": 3}, {"top_k": 20}, {"min_p": 0.2}, {"temperature": 0.5, "top_k": 8})]
    cases = []
    for index, given in plan:
        params = {**DEFAULTS, **given}
        favourites = np.argsort(vectors[index])[::-1][:20]
        prompt = rng.integers(0, VOCAB, 24).tolist() + favourites[:3].tolist()
        output = rng.integers(0, VOCAB, 6).tolist() + rng.choice(favourites, 14).tolist()
        p = distribution(vectors[index], params, prompt, output)
        probs = {str(i): float(f"{p[i]:.9g}") for i in np.flatnonzero(p >= SMALLEST)}
        cases.append({"logits": index, "params": params, "prompt": prompt, "output": output, "probs": probs})
    return {
        "about": "probs are final probabilities by token id; those below 1e-10 are left out",
        "logits": [[float(f"{v:.8g}") for v in row] for row in vectors],
        "cases": cases,
    }
