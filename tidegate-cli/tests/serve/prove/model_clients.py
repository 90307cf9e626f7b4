"""What programs with the client libraries of OpenAI and Anthropic get from a gateway.

Usage: model_clients.py URL

Each user has 1,000 tokens a minute, and as many at once; the user `quota` has 500 a month.
"""

import sys
import time

import anthropic
import openai

URL = sys.argv[1]
DENIED = "Too many requests. Retry later."
PERMANENT = "The request costs more than the limit ever allows at once. Waiting does not help."

waits = []
sleep = time.sleep


def record_wait(seconds):
    waits.append(seconds)
    sleep(seconds)


def ask_openai(tokens, user, retries=0, **options):
    client = openai.OpenAI(api_key="k", base_url=f"{URL}/v1", max_retries=retries, default_headers={"x-user": user})
    messages = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(model="m", messages=messages, max_tokens=tokens, **options)


def ask_anthropic(tokens, user, retries=0, **options):
    client = anthropic.Anthropic(api_key="k", base_url=URL, max_retries=retries, default_headers={"x-user": user})
    messages = [{"role": "user", "content": "hi"}]
    return client.messages.create(model="m", messages=messages, max_tokens=tokens, **options)


def error_of(ask, *arguments, **options):
    try:
        ask(*arguments, **options)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return error
    raise AssertionError("the request passes")


def check_openai(error, kind, type_, code, message):
    assert type(error) is kind, repr(error)
    assert (error.type, error.code, error.param) == (type_, code, None), error.body
    assert message in error.message and error.body["message"] == message, error.body


def check_anthropic(error, kind, type_, message):
    assert type(error) is kind, repr(error)
    assert (error.type, error.api_message, error.body["type"]) == (type_, message, "error"), error.body


def check_retry(ask, user):
    """The library waits for as long as the gateway says, not for as long as it would by itself, and its request passes then."""
    ask(1000, user)
    error = error_of(ask, 25, user)
    millis = int(error.response.headers["retry-after-ms"])
    assert 1000 < millis <= 1500, millis
    waits.clear()
    ask(25, user, retries=1)
    # The limit refills meanwhile, so the second denial names a shorter time.
    assert len(waits) == 1 and 0 < waits[0] <= millis / 1000, (waits, millis)


time.sleep = record_wait

ask_openai(1000, "a")
for stream in (False, True):
    error = error_of(ask_openai, 1000, "a", stream=stream)
    check_openai(error, openai.RateLimitError, "rate_limit_error", "rate_limit_exceeded", DENIED)
    error = error_of(ask_anthropic, 1000, "a", stream=stream)
    check_anthropic(error, anthropic.RateLimitError, "rate_limit_error", DENIED)

error = error_of(ask_openai, 4000, "a")
check_openai(error, openai.RateLimitError, "rate_limit_error", "rate_limit_exceeded", PERMANENT)
assert "retry-after-ms" not in error.response.headers, error.response.headers

check_retry(ask_openai, "b")
check_retry(ask_anthropic, "c")

# The next month is too far for OpenAI's library: it does not wait.
ask_openai(300, "quota")
waits.clear()
error = error_of(ask_openai, 300, "quota", retries=2)
check_openai(error, openai.RateLimitError, "insufficient_quota", "insufficient_quota", DENIED)
assert waits == [], waits
check_anthropic(error_of(ask_anthropic, 300, "quota"), anthropic.RateLimitError, "insufficient_quota", DENIED)

twice = {"extra_body": {"Stream": True}}
message = "The request body has `stream` or `stream_options` twice, or in other letters."
check_openai(
    error_of(ask_openai, 1, "d", **twice), openai.BadRequestError, "invalid_request_error", "bad_request", message
)
print("both libraries read every error")
