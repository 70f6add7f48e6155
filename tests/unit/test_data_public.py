import gzip
import lzma

import numpy as np
import pytest

from tacit.data import load
from tacit.errors import InputError

AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
    "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
    "C14,C15,C16,C17,C18,C19,C20,C21"
)
CREDIT = (
    "LIMIT_BAL,SEX,EDUCATION,MARRIAGE,AGE,PAY_0,PAY_2,PAY_3,PAY_4,PAY_5,PAY_6,"
    + ",".join(f"BILL_AMT{k}" for k in range(1, 7))
    + ","
    + ",".join(f"PAY_AMT{k}" for k in range(1, 7))
)


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))


def put(root, place, text):
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text.encode()))
    return path


def criteo_line(label="0", numbers="5", categories="aa"):
    return "\t".join([label, *[numbers] * 13, *[categories] * 26])


def criteo_text(*lines, end="\n"):
    return end.join([criteo_line("1", "10", "68fd1e64"), criteo_line(), *lines]) + end


@pytest.mark.parametrize("place", ["criteo/train.txt", "criteo/train_sample_137139.txt.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_criteo(tmp_path, place, end):
    put(tmp_path, place, criteo_text(criteo_line("1", "", ""), end=end))
    table = load("criteo")
    assert table.labels.tolist() == [1, 0, 1]
    assert table.numeric[:, 0].tolist() == [1.0, 0.5, 0.0]
    assert table.cardinalities == (3,) * 26
    assert table.categorical[:, 25].tolist() == [1, 2, 0]
    assert (table.test_fraction, table.day, table.classes) == (0.1, None, 2)
    assert table.numeric_names[:2] == ("I1", "I2")
    assert table.categorical_names[-1] == "C26"


def test_a_quote_is_a_character_in_criteo(tmp_path):
    put(tmp_path, "criteo/train.txt", criteo_text(criteo_line("0", "1", '"x')))
    assert load("criteo").cardinalities == (3,) * 26


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (criteo_line()[:-3], r"train.txt, line 3: 39 columns instead of 40"),
        (criteo_line() + "\tmore", r"line 3: 41 columns instead of 40"),
        (criteo_line("2"), r"line 3: label must be 0 or 1, got '2'"),
        (criteo_line("yes"), r"line 3: label must be 0 or 1, got 'yes'"),
        (criteo_line(""), r"line 3: label is missing"),
        (criteo_line("0", "many"), r"line 3: I1 must be a number, got 'many'"),
        (criteo_line("0", "inf"), r"line 3: I1 must be within plus or minus 1e38, got inf"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    put(tmp_path, "criteo/train.txt", criteo_text(line, criteo_line()))
    with pytest.raises(InputError, match=message) as caught:
        load("criteo")
    assert "\n" not in str(caught.value)


def test_blank_lines_count_in_the_message_but_not_as_rows(tmp_path):
    put(tmp_path, "criteo/train.txt", criteo_text("", "", criteo_line("7")))
    with pytest.raises(InputError, match="line 5: label"):
        load("criteo")
    put(tmp_path, "criteo/train.txt", criteo_text("", ""))
    assert len(load("criteo")) == 2


def test_a_late_line_is_named_too(tmp_path):
    lines = [criteo_line(str(k % 2)) for k in range(300_000)]
    lines[250_000] = criteo_line("9")
    put(tmp_path, "criteo/train.txt", "\n".join(lines))
    with pytest.raises(InputError, match="line 250001: label must be 0 or 1, got '9'"):
        load("criteo")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "train.txt is empty"),
        (criteo_text().encode()[:90] + b"\xff\xfe" + criteo_text().encode(), "cannot be read|line"),
        ((criteo_line() + "\n").encode() * 3, "two classes, all 3 rows have label 0"),
    ],
)
def test_files_that_are_no_table_are_refused(tmp_path, content, message):
    (tmp_path / "criteo").mkdir()
    (tmp_path / "criteo" / "train.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load("criteo")


def test_a_damaged_gzip_file_is_refused(tmp_path):
    path = put(tmp_path, "criteo/train.txt.gz", criteo_text() * 50)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"train.txt.gz cannot be read"):
        load("criteo")


def conversion_line(sale, stamp, price="9.5", brand="B1"):
    cells = [sale, "-1.0", "-1", stamp, "3", price, "age", "dev", "aud", "-1", brand]
    return "\t".join([*cells, *(f"c{k}" for k in range(7)), "FR", "p1", "a b c", "par", "u"])


def test_criteo_conversion(tmp_path):
    day = 86_400
    lines = [
        conversion_line("0", str(18_500 * day + 5)),
        conversion_line("1", str(18_499 * day), price="-1", brand="-1"),
        conversion_line("0", str(18_500 * day), price="19.0"),
    ]
    put(tmp_path, "criteo_conversion/CriteoSearchData", "\n".join(lines))
    table = load("criteo_conversion")
    assert (len(table.numeric_names), len(table.categorical_names)) == (3, 17)
    assert table.day.tolist() == [18_499, 18_500, 18_500]
    assert table.labels.tolist() == [1, 0, 0]
    assert table.numeric[:, 2].tolist() == [0.0, 1.0, 0.5]
    assert table.categorical[:, table.categorical_names.index("product_brand")].tolist() == [
        0,
        1,
        1,
    ]
    assert table.ids.tolist() == [1, 2, 0]
    assert load("criteo_conversion", price=False).numeric_names == (
        "click_timestamp",
        "nb_clicks_1week",
    )


def avazu_line(number, click, hour, site="s1"):
    return ",".join([number, click, hour, "1005", "0", site, *["x"] * 10, *["1"] * 8])


def test_avazu_files_become_one_table_in_time_order(tmp_path):
    big = "14489770110436898243"
    put(tmp_path, "avazu/train_b.csv.gz", "\n".join([AVAZU, avazu_line(big, "0", "14102923", "")]))
    later = [avazu_line("2", "1", "14102100"), avazu_line("3", "0", "14103000")]
    put(tmp_path, "avazu/train_a.csv", "\r\n".join([AVAZU, *later]) + "\r\n")
    table = load("avazu")
    assert table.ids.tolist() == ["2", big, "3"]
    assert table.labels.tolist() == [1, 0, 0]
    assert np.diff(table.day).tolist() == [8, 1]
    assert table.categorical_names[0] == "hour"
    assert table.categorical[:, 0].tolist() == [0, 1, 0]
    assert table.categorical[:, table.categorical_names.index("site_id")].tolist() == [1, 0, 1]
    assert table.numeric.shape == (3, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AVAZU.replace("click", "clic") + "\n", "line 1: column 'click' is missing: .*'clic'"),
        (
            AVAZU + "\n" + avazu_line("1", "0", "14102124"),
            "line 2: hour must be YYMMDDHH.*14102124",
        ),
        (AVAZU + "\n" + avazu_line("1", "0", "14133100"), "line 2: hour must be .*2014-13-31"),
        (AVAZU + "\n", "avazu has no rows"),
        (AVAZU + ",click\n", "column 'click' occurs twice"),
    ],
)
def test_wrong_avazu_files_are_refused(tmp_path, text, message):
    put(tmp_path, "avazu/train.csv", text)
    with pytest.raises(InputError, match=message):
        load("avazu")


def test_spambase(tmp_path):
    rows = [",".join(["0.5" if k % 3 else "", *["1"] * 56, str(k % 2)]) for k in range(12)]
    put(tmp_path, "spambase.data", "\r\n".join(rows))
    table = load("spambase")
    assert table.test_fraction == 0.3
    assert table.numeric[:, 0].mean() == pytest.approx(0.0, abs=1e-6)
    assert table.numeric[:, 0].std() == pytest.approx(1.0, abs=1e-6)
    assert (table.numeric[:, 1] == 0.0).all()
    assert table.labels.tolist() == [0, 1] * 6


def test_credit_numbers_or_categories(tmp_path):
    header = ",".join(f'"{name}"' for name in f"ID,{CREDIT},default.payment.next.month".split(","))
    rows = [f"{k},{'1000,2,1,1,30,' + ','.join([str(k % 3)] * 18)},{k % 2}" for k in range(1, 9)]
    put(tmp_path, "UCI_Credit_Card.csv", "\n".join([header, *rows]))
    table = load("credit")
    assert ",".join(table.numeric_names) == CREDIT
    assert table.ids.tolist() == [str(k) for k in range(1, 9)]
    coded = load("credit", categorical=True)
    assert (coded.numeric.shape, coded.categorical.shape) == ((8, 14), (8, 9))
    assert coded.categorical_names[:4] == ("SEX", "EDUCATION", "MARRIAGE", "PAY_0")
    assert coded.categorical[:3, 3].tolist() == [1, 2, 0]
