from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit import attack, protect
from tacit.errors import ParameterError, SpecError, TacitError
from tacit.spec import Registry, Specified, nearest, parse

PRINTED = [
    "none",
    "gaussian(sigma=0.1)",
    "iso(t=2)",
    "max_norm",
    "max_norm_positive",
    "max_norm_positive_published",
    "marvell(s=4)",
    "marvell(sum_kl=0.16)",
    "marvell(error=0.4)",
    "marvell(error=0.05, share=0.1)",
    "max_norm | gaussian(sigma=0.1)",
    "iso(t=1e-05) | marvell(s=0.5) | gaussian(sigma=1000)",
]


@pytest.mark.parametrize("text", PRINTED)
def test_specs_print_back(text):
    assert str(protect.get(text)) == text
    assert protect.get(str(protect.get(text))) == protect.get(text)


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ("  marvell( 4 ) ", "marvell(s=4)"),
        ("marvell(s = 4.0)", "marvell(s=4)"),
        ("gaussian(1e-1)", "gaussian(sigma=0.1)"),
        ("none()", "none"),
        ("max_norm|iso(.5)", "max_norm | iso(t=0.5)"),
        ("marvell(s=4, covariance=isotropic)", "marvell(s=4)"),
    ],
)
def test_loose_spelling(loose, tight):
    assert str(protect.get(loose)) == tight


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_numbers_survive_the_round_trip(value):
    chain = protect.get(f"gaussian(sigma={value!r})")
    assert protect.get(str(chain)) == chain
    assert chain.stages == (protect.Gaussian(sigma=value),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("marvel(s=4)", "unknown protection 'marvel': did you mean 'marvell'?"),
        ("marvell(power=4)", "marvell has no parameter 'power'"),
        ("marvell(sumkl=4)", "did you mean 'sum_kl'?"),
        ("max_norm(2)", "max_norm takes no parameters, got 1 values"),
        ("max_norm(s=2)", "max_norm has no parameter 's': it takes none"),
        ("gaussian", "gaussian needs sigma: write gaussian(sigma=...)"),
        ("gaussian(0.1, sigma=0.2)", "sigma is given twice"),
        ("gaussian(sigma=x)", "sigma takes a number, got x"),
        ("gaussian(sigma=nan)", "sigma takes a number, got nan"),
        ("marvell(s=4, covariance=ful)", "covariance takes isotropic"),
        ("gaussian(1.2.3)", "'1.2.3' is not a number"),
        ("gaussian(0.1", "expected ',' or ')', found the end"),
        ("gaussian(sigma=0.1, 3)", "expected name=value"),
        ("| iso(1)", "expected a name"),
        ("iso(1) |", "expected a name, found the end"),
        ("iso(1) gaussian(1)", "expected '|' or the end, found gaussian"),
        ("", "a protection needs a name, got ''"),
        ("   ", "needs a name"),
        ("zzz", "known are none, gaussian"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(SpecError) as caught:
        protect.get(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("marvell(s=-1)", "marvell: s must be positive, got -1"),
        ("marvell(s=0)", "s must be positive"),
        ("marvell(sum_kl=0)", "sum_kl must be positive"),
        ("marvell(error=0.7)", "error must be at least 0 and below 0.5, got 0.7"),
        ("marvell(error=0.5)", "below 0.5"),
        ("marvell(s=1, sum_kl=1)", "exactly one of s, sum_kl, error, got s=1.0 and sum_kl=1.0"),
        ("marvell", "exactly one of s, sum_kl, error, got none"),
        ("iso(t=0)", "t must be positive"),
        ("gaussian(sigma=-0.1)", "sigma must be positive, got -0.1"),
        ("gaussian(sigma=1e999)", "sigma must be positive, got inf"),
        ("hint(k=0)", "k must be"),
    ],
)
def test_impossible_values_are_refused(text, message):
    get = attack.get if text.startswith("hint") else protect.get
    with pytest.raises(ParameterError) as caught:
        get(text)
    assert message in str(caught.value)
    assert isinstance(caught.value, TacitError)


def test_objects_pass_through():
    chain = protect.get("iso(1)")
    assert protect.get(chain) is chain
    assert protect.get(protect.Iso(t=1.0)) == chain


def test_every_kind_of_field():
    @dataclass(frozen=True)
    class Base(Specified):
        kind: ClassVar[str] = "x"
        count: int = 1
        rate: float | None = None
        mode: Literal["a", "b"] = "a"
        flag: bool = False
        inner: "Base | None" = None

    registry: Registry[Base] = Registry("thing")
    globals()["Base"] = Base  # type hints are resolved by name
    registry.register("base")(Base)
    built = registry.get("base(3, 0.5, b, true, inner=base(flag=true))")
    assert built == Base(3, 0.5, "b", True, Base(flag=True))
    assert str(built) == "base(count=3, rate=0.5, mode=b, flag=true, inner=base(flag=true))"
    for wrong in ("base(count=1.5)", "base(mode=c)", "base(flag=1)", "base(mode=a(1))"):
        with pytest.raises(SpecError, match="takes"):
            registry.get(wrong)
    with pytest.raises(SpecError, match="registered already"):
        registry.register("base")(Base)
    with pytest.raises(SpecError, match="one thing is expected"):
        registry.get("base | base")


def test_nearest_and_parse():
    assert nearest("gausian", ["gaussian", "iso"]) == "did you mean 'gaussian'?"
    assert nearest("q", ["gaussian", "iso"]) == "known are gaussian, iso"
    assert parse("a(b=c(1))")[0].named[0][0] == "b"


def test_lists_come_from_the_registries():
    assert tacit.list_protections() == protect.PROTECTIONS.names()
    assert {"norm", "cosine", "majority", "hint", "mean", "median", "energy", "principal"} <= set(
        tacit.list_attacks()
    )
    for entry in (*protect.PROTECTIONS, *attack.ATTACKS):
        assert entry.summary.endswith("."), entry.name
    assert all(entry.guarantee for entry in protect.PROTECTIONS)
