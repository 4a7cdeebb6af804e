"""What a control reply means, from status, headers and bytes alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.net.replies import Verdict, read_reply

OURS = {"incarnation": "ab" * 16, "epoch": 3, "server_ts": 1790000000.5}
ERROR = {"error": {"code": "stale_checkpoint", "detail": "ck-1 was resumed"}}


def test_only_200_with_an_object_is_a_good_answer() -> None:
    """The object is the body, and what the server shows of itself is taken from it."""
    answer = read_reply(200, {}, json.dumps({"phase": "idle", **OURS}).encode())
    assert (answer.verdict, answer.body) == (Verdict.ACCEPTED, {"phase": "idle", **OURS})
    assert (answer.incarnation, answer.epoch, answer.server_ts) == ("ab" * 16, 3, 1790000000.5)
    foreign = read_reply(200, {}, b'{"phase":"idle"}')
    assert (foreign.verdict, foreign.incarnation, foreign.epoch, foreign.server_ts) == (
        Verdict.ACCEPTED,
        None,
        None,
        None,
    )
    assert read_reply(200, {"x-statecore-incarnation": "ef"}, b"{}").incarnation == "ef"


@pytest.mark.parametrize("status", [201, 204, 301, 400, 401, 403, 404, 405, 409, 413, 422, 429, 500, 501, 505])
def test_a_refusal_of_ours_is_final(status: int) -> None:
    """With our body these are final, whatever the status, and the code is the server's own."""
    answer = read_reply(status, {}, json.dumps({**ERROR, **OURS}).encode())
    assert (answer.verdict, answer.code, answer.detail) == (Verdict.REFUSED, "stale_checkpoint", "ck-1 was resumed")
    assert (answer.transport, answer.incarnation) == (False, "ab" * 16)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_gateway_answers_may_be_tried_again(status: int) -> None:
    """502-504 may be sent again; with our body the server is not in doubt, without it it is."""
    ours = read_reply(status, {}, json.dumps({**ERROR, **OURS}).encode())
    foreign = read_reply(status, {}, b"Bad Gateway")
    assert (ours.verdict, ours.code, ours.transport) == (Verdict.TRY_AGAIN, "stale_checkpoint", False)
    assert (foreign.verdict, foreign.code, foreign.transport) == (Verdict.TRY_AGAIN, f"http_{status}", True)
    assert "Bad Gateway" in foreign.detail


@pytest.mark.parametrize(
    "body",
    [b"", b"Internal Server Error", b"{}", json.dumps(ERROR).encode(), json.dumps(OURS).encode(), b'{"error":"no"}'],
)
def test_a_5xx_that_is_not_ours_is_a_transport_error(body: bytes) -> None:
    """Without an error code and an incarnation a 500 says nothing of the server; a shutdown makes such ones."""
    answer = read_reply(500, {}, body)
    assert (answer.verdict, answer.transport, answer.status) == (Verdict.TRY_AGAIN, True, 500)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "is empty"),
        (b"<html>", "<html>"),
        (b"[1]", "array"),
        (b"null", "literal"),
        (b"true", "literal"),
        (b'"x"', "string"),
        (b"7", "number"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":1,"a":2}', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"incarnation":7}', "incarnation"),
        (b'{"incarnation":"a b"}', "incarnation"),
        (b'{"incarnation":""}', "incarnation"),
        (b'{"epoch":"3"}', "epoch"),
        (b'{"epoch":true}', "epoch"),
        (b'{"server_ts":"now"}', "server_ts"),
        (b'{"server_ts":true}', "server_ts"),
    ],
)
def test_a_good_status_with_garbage_is_refused_and_quoted(body: bytes, named: str) -> None:
    """The detail says what came."""
    answer = read_reply(200, {}, body)
    assert (answer.verdict, answer.code, answer.body) == (Verdict.REFUSED, "garbage_reply", None)
    assert named in answer.detail


def test_a_schema_error_of_another_shape_is_quoted() -> None:
    """FastAPI's own 422 has no error object (docs/reference/codes.md): the code is the status, the body is quoted."""
    answer = read_reply(422, {}, b'{"detail":[{"type":"missing","loc":["body","deadline_ts"],"msg":"Field required"}]}')
    assert (answer.verdict, answer.code, answer.transport) == (Verdict.REFUSED, "http_422", False)
    assert "deadline_ts" in answer.detail


def test_a_long_body_is_quoted_in_part() -> None:
    """The detail of a page of HTML stays short and says how long it was."""
    answer = read_reply(404, {}, b"x" * 10_000)
    assert len(answer.detail) < 400
    assert "10000 bytes" in answer.detail


@given(
    st.integers(100, 599),
    st.binary(max_size=60) | st.from_regex(r"\{\"(error|epoch|incarnation)\":.{0,20}\}").map(str.encode),
)
def test_no_reply_is_an_exception(status: int, body: bytes) -> None:
    """Whatever a server sends has a meaning; it is good only with status 200 and an object."""
    answer = read_reply(status, {}, body)
    assert answer.status == status
    assert (answer.verdict is Verdict.ACCEPTED) == (answer.body is not None)
    assert answer.verdict is not Verdict.ACCEPTED or status == 200
