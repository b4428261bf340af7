"""Prompts and requests that several tests share."""

PROMPT = "It is a truth universally acknowledged"
MESSAGES = [{"role": "user", "content": "Call me Ishmael."}]
PROMPTS = [
    PROMPT, "Call me", "The horse", "\"My dear Watson,\" said", "In the year 1815", "It was", "Prince Andrew looked",
    "Whale!", "The little girl", "There she blows", "I had seen little of Holmes lately. My marriage had", "Mr. Darcy",
]

GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 1234}
WIDE = {"temperature": 1.0, "seed": -70, "extra_body": {"top_k": 50, "min_p": 0.01}}
PENALISED = {"temperature": 0.7, "seed": 3, "frequency_penalty": 0.5, "presence_penalty": 0.5,
             "extra_body": {"repetition_penalty": 1.2}}
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED, "wide": WIDE, "penalised": PENALISED}


def with_ids(sampling):
    """Returns the request with token ids in its response."""
    return {**sampling, "extra_body": {**sampling.get("extra_body", {}), "return_token_ids": True}}


def ids_of(choice):
    return choice.model_extra["token_ids"]
