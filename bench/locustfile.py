"""The closed loop of bench/load for Locust, a second opinion on its figures: streamed completions of 128 random tokens,
64 tokens each. locust -f bench/locustfile.py --headless -u 8 -r 8 -t 20s -H http://127.0.0.1:30000"""

import random

from locust import FastHttpUser, constant, task

INPUT_TOKENS = 128
OUTPUT_TOKENS = 64
VOCABULARY = 1000


class Client(FastHttpUser):
    wait_time = constant(0)

    @task
    def complete(self):
        prompt = [random.randrange(VOCABULARY) for _ in range(INPUT_TOKENS)]
        body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
        with self.client.post("/v1/completions", json=body, catch_response=True) as answer:
            if not answer.text.endswith("data: [DONE]\n\n"):
                answer.failure("the stream has no end")
