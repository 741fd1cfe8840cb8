//! What is wrong with a text that should be a time.

/// The first fault of a time; `micro` says whether it has exactly six digits after the second.
pub(crate) fn time_fault(text: &str, micro: bool) -> Option<String> {
    let fraction = if micro { ".000000" } else { "" };
    let layout = format!("2006-01-02T15:04:05{fraction}Z07:00");
    let parts = [
        ("2006", 4, 9999, "year"),
        ("-", 0, 0, ""),
        ("01", 2, 12, "month"),
        ("-", 0, 0, ""),
        ("02", 2, 31, "day"),
        ("T", 0, 0, ""),
        ("15", 2, 23, "hour"),
        (":", 0, 0, ""),
        ("04", 2, 59, "minute"),
        (":", 0, 0, ""),
        ("05", 2, 59, "second"),
    ];
    let mut rest = text;
    let bad = |rest: &str, part: &str| {
        Some(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {part:?}"))
    };
    let mut numbers = Vec::new();
    for (part, digits, most, name) in parts {
        if digits == 0 {
            match rest.strip_prefix(part) {
                Some(after) => rest = after,
                None => return bad(rest, part),
            }
            continue;
        }
        let number = rest.get(..digits).filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
        let Some(number) = number.and_then(|t| t.parse::<u16>().ok()) else {
            return bad(rest, part);
        };
        if number > most || (number == 0 && matches!(name, "month" | "day")) {
            return Some(format!("parsing time {text:?}: {name} out of range"));
        }
        numbers.push(number);
        rest = &rest[digits..];
    }
    let digits = rest
        .strip_prefix('.')
        .map_or(0, |tail| tail.bytes().take_while(u8::is_ascii_digit).count());
    if micro {
        if digits < 6 {
            return bad(rest, ".000000");
        }
        rest = &rest[7..];
    } else if digits > 0 {
        rest = &rest[1 + digits..];
    }
    let zone = |rest: &str| -> Option<usize> {
        if rest.starts_with('Z') {
            return Some(1);
        }
        let b = rest.as_bytes();
        let fits = b.len() >= 6
            && matches!(b[0], b'+' | b'-')
            && b[3] == b':'
            && [1, 2, 4, 5].iter().all(|i| b[*i].is_ascii_digit());
        fits.then_some(6)
    };
    let Some(length) = zone(rest) else { return bad(rest, "Z07:00") };
    if rest.len() > length {
        return Some(format!("parsing time {text:?}: extra text: {:?}", &rest[length..]));
    }
    if numbers.get(2) > days(&numbers).as_ref() {
        return Some(format!("parsing time {text:?}: day out of range"));
    }
    None
}

/// How many days the month has.
fn days(numbers: &[u16]) -> Option<u16> {
    let [year, month, ..] = numbers else { return None };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    Some(match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_worded_as_go_words_them() {
        let micro = "\"2006-01-02T15:04:05.000000Z07:00\"";
        let rows = [
            ("2020-01-01T00:00:00Z", format!("as {micro}: cannot parse \"Z\" as \".000000\"")),
            (
                "2020-01-01T02:00:00.5+02:00",
                format!("as {micro}: cannot parse \".5+02:00\" as \".000000\""),
            ),
            ("yesterday", format!("as {micro}: cannot parse \"yesterday\" as \"2006\"")),
            ("2020/01/01", format!("as {micro}: cannot parse \"/01/01\" as \"-\"")),
        ];
        for (text, wanted) in rows {
            assert_eq!(time_fault(text, true), Some(format!("parsing time {text:?} {wanted}")));
        }
        let range = "2020-13-01T00:00:00Z";
        assert_eq!(
            time_fault(range, false),
            Some(format!("parsing time {range:?}: month out of range"))
        );
        let day = "2021-02-29T00:00:00Z";
        assert_eq!(time_fault(day, false), Some(format!("parsing time {day:?}: day out of range")));
        assert_eq!(time_fault("2020-01-01T00:00:00.123456Z", true), None);
        assert_eq!(time_fault("2020-01-01T00:00:00Z", false), None);
        assert_eq!(time_fault("2020-01-01T00:00:00.5+02:00", false), None);
    }
}
