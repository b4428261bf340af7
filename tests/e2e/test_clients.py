"""Tests the client of a framework that builds on OpenAI's."""

import pytest
from millrace_server import MODEL, PATIENCE_S
from prompts import PROMPT

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

OPTIONS = {"model": MODEL.name, "api_key": "none", "timeout": PATIENCE_S, "temperature": 0, "max_retries": 0}


@pytest.fixture
def chat(server):
    return langchain_openai.ChatOpenAI(base_url=server.url + "/v1", max_tokens=24, **OPTIONS)


def test_langchain_chat_whole_and_streamed(chat):
    whole = chat.invoke("Call me Ishmael.")
    chunks = list(chat.stream("Call me Ishmael.", stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert whole.usage_metadata["output_tokens"] <= 24
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    total = sum((chunk for chunk in chunks[1:]), start=chunks[0])
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_langchain_asynchronous_batch(chat):
    messages = [[("system", "Be brief."), ("human", text)] for text in ("Call me", "The horse", "It was")]
    answers = await chat.abatch(messages)
    assert [answer.content for answer in answers] == [chat.invoke(each).content for each in messages]


def test_langchain_logprobs_and_stop(chat):
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke("Call me Ishmael.")
    tokens = answer.response_metadata["logprobs"]["content"]
    assert len(tokens) == answer.usage_metadata["output_tokens"]
    whole = chat.invoke("Call me Ishmael.").content
    stop = whole[len(whole) // 2:][:3]
    assert chat.invoke("Call me Ishmael.", stop=[stop]).content == whole[:whole.index(stop)]


def test_langchain_completions(server):
    model = langchain_openai.OpenAI(base_url=server.url + "/v1", max_tokens=12, **OPTIONS)
    assert model.invoke(PROMPT) == "".join(model.stream(PROMPT))
    assert len(model.batch([PROMPT, "Call me"])) == 2


def test_langchain_sees_the_error(server):
    chat = langchain_openai.ChatOpenAI(base_url=server.url + "/v1", **{**OPTIONS, "model": "no-such-model"})
    with pytest.raises(Exception, match="no-such-model"):
        chat.invoke("x")
