"""What an id is in private set intersection, and its point on the curve, checked the slow way."""

import hashlib
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.wire.psi.curve import blind_ids, blind_points, hash_to_x
from tacit.wire.psi.ecdh import PsiSide, converse
from tacit.wire.psi.values import canonical_id, hash_ids

PRIME = 2**256 - 2**32 - 977
ORDER = 2**256 - 0x14551231950B75FC4402DA1732FC9BEBF
GOLDEN = {
    "17": "37d159eba5e1e9cb6d4f9024504f3e6c83583dfd4b6f3184459fe3c72c0529f9",
    "a": "100c9ab73169f5c1abef7cd3db047ed266780e05c13bab39eab4cde4cdf9ec1d",
    "é": "9ac7fc59d88650f74f87654f0e94f117b0df237fdfce275af0f67cba7b3b6971",
    "x" * 256: "524bc8bef007909e34e0dc6680cd13a1e3d7a9fa57d08fc4edcee2f4399eb076",
}


def matched(mine, theirs):
    found = converse(PsiSide("feature", mine), PsiSide("label", theirs))
    return tuple(side.rows.tolist() for side in found)


# The curve, checked without the library: y^2 = x^3 + 7.


def right_side(x):
    return (x**3 + 7) % PRIME


def on_curve(x):
    return x < PRIME and pow(right_side(x), (PRIME - 1) // 2, PRIME) in {0, 1}


def added(p, q):
    """Return the sum of two points, None being the neutral one."""
    if p is None or q is None:
        return p or q
    if p[0] == q[0] and (p[1] + q[1]) % PRIME == 0:
        return None
    if p == q:
        slope = 3 * p[0] ** 2 * pow(2 * p[1], -1, PRIME)
    else:
        slope = (q[1] - p[1]) * pow(q[0] - p[0], -1, PRIME)
    x = (slope**2 - p[0] - q[0]) % PRIME
    return x, (slope * (p[0] - x) - p[1]) % PRIME


def times(scalar, x):
    """Return the x-coordinate of a multiple of the point at x."""
    point, total = (x, pow(right_side(x), (PRIME + 1) // 4, PRIME)), None
    for bit in bin(scalar)[2:]:
        total = added(total, total)
        if bit == "1":
            total = added(total, point)
    return total[0]


def slow_hash_to_x(hashed):
    for counter in range(256):
        x = hashlib.sha256(b"tacit psi v2 point\0" + hashed + counter.to_bytes(4, "big")).digest()
        if on_curve(int.from_bytes(x, "big")):
            return x
    raise AssertionError


@pytest.mark.parametrize("value", list(GOLDEN))
def test_an_id_has_the_point_that_it_always_had(value):
    hashed = hashlib.sha256(b"tacit psi v1 id\0" + value.encode()).digest()
    assert hash_ids([value]).tobytes() == hashed
    assert hash_to_x(hashed).hex() == GOLDEN[value]


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=30, deadline=None)
def test_hashes_land_on_the_curve_where_the_slow_way_does(hashed):
    x = hash_to_x(hashed)
    assert x == slow_hash_to_x(hashed)
    assert on_curve(int.from_bytes(x, "big"))


@given(st.integers(1, ORDER - 1), st.integers(1, ORDER - 1), st.binary(min_size=32, max_size=32))
@settings(max_examples=5, deadline=None)
def test_blinding_is_multiplication_and_its_order_does_not_matter(a, b, hashed):
    first, second = a.to_bytes(32, "big"), b.to_bytes(32, "big")
    x = int.from_bytes(hash_to_x(hashed), "big")
    once = blind_ids(first, hashed)
    assert int.from_bytes(once, "big") == times(a, x)
    twice = blind_points(second, once, 0)
    assert twice == blind_points(first, blind_ids(second, hashed), 0)
    assert int.from_bytes(twice, "big") == times(a * b % ORDER, x)


def test_the_hash_of_many_ids_is_spread_evenly():
    found = [hash_to_x(row.tobytes()) for row in hash_ids(range(2000))]
    assert len(set(found)) == 2000
    high = sum(x[0] >> 7 for x in found)
    assert abs(high - 1000) < 5 * (2000 / 4) ** 0.5


# Ids.


@given(st.integers(-(10**30), 10**30))
def test_a_number_is_its_decimal_text(number):
    assert canonical_id(number) == canonical_id(str(number)) == str(number).encode()


@pytest.mark.parametrize(
    "different",
    [
        ("a", "a "),
        ("a", " a"),
        ("a", "A"),
        ("17", "017"),
        ("17", "17.0"),
        ("17", "+17"),
        ("17", "１７"),
        ("ß", "ss"),
        ("a", "a\u200b"),
        ("a", "\ufeffa"),
        ("0", "-0"),
        ("a", "а"),
    ],
)
def test_what_looks_alike_is_not_the_same(different):
    first, second = different
    assert matched([first, second], [second, "other"]) == ([1], [0])


@pytest.mark.parametrize("text", ["é", "Åse", "한글", "ñ", "ệ"])
def test_letters_match_however_they_were_typed(text):
    composed, apart = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert composed != apart
    assert matched(["x", composed], [apart, "y"]) == ([1], [0])
    with pytest.raises(InputError, match="in row 1 and again in row 3"):
        PsiSide("feature", [composed, "x", apart])


def test_numbers_match_text():
    numbers = np.array([17, -4, 2**62], dtype=np.int64)
    rows, others = matched(numbers, np.array(["-4", "017", str(2**62)]))
    assert sorted(zip(rows, others, strict=True)) == [(1, 0), (2, 2)]
    with pytest.raises(InputError, match="in row 1 and again in row 2"):
        PsiSide("feature", [17, "17"])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "takes 1 to 10000000 ids, got 0"),
        (["a", ""], "row 2: an id must not be empty, got ''"),
        (["a", "b", " \t"], "row 3: an id must not be empty"),
        (["a" * 257], "row 1: an id has at most 256 characters, got 257"),
        ([10**256], "row 1: an id has at most 256 characters, got 257"),
        (["a", "\ud800"], "row 2: an id must be valid Unicode"),
        ([1, 2.5], "row 2: an id must be a whole number or text, got 2.5"),
        ([True], "row 1: an id must be a whole number or text, got True"),
        ([b"a"], "row 1: an id must be a whole number or text"),
        ([None], "row 1: an id must be a whole number or text"),
        (np.array([1.0]), "row 1: an id must be a whole number or text"),
        (np.array([[1]]), "ids must be in one dimension, got 2"),
        (["x", "a", "y", "a"], "id 'a' is in row 2 and again in row 4"),
        (np.array([5, 6, 5]), "is in row 1 and again in row 3"),
    ],
)
def test_what_cannot_be_an_id_is_refused_with_its_row(ids, words):
    with pytest.raises(InputError) as caught:
        PsiSide("label", ids)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_odd_ids_are_ids_like_others():
    ids = ["x" * 256, "𝔘𝔫𝔦", "a\nb", "a\0b", "🙂", "'; --", "ﬀ", "\u202eabc", "0" * 256, "é" * 256]
    rows, others = matched(ids, ids[::-1])
    assert sorted(rows) == list(range(len(ids)))
    assert [len(ids) - 1 - at for at in others] == rows
