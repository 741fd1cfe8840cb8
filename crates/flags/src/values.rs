//! Values as Go's flag package reads them, and the few composite values of the sidecars.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Go's spellings of a boolean, and no others.
///
/// # Errors
/// On any other word.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it is true or false".into()),
    }
}

/// A Go duration that is not negative.
///
/// # Errors
/// When the text is no duration, or a negative one.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = "a duration is written as in Go, for example 1m30s, 10s or 500ms";
    if text.starts_with('-') {
        return Err("it may not be negative".into());
    }
    longshore_core::model::go_duration::parse_duration(text).map_err(|_| expected.to_owned())
}

/// A Go duration of more than zero.
///
/// # Errors
/// When the text is no duration or not positive.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        length => Ok(length),
    }
}

/// A number of bytes, as quantities are written: `128Mi`, `1G`, `500000`.
///
/// # Errors
/// When the text is no quantity, or a negative one.
pub fn bytes(text: &str) -> Result<u64, String> {
    let expected = || "it is a number of bytes, for example 128Mi, 1G or 0".to_owned();
    let quantity: longshore_core::model::Quantity = text.parse().map_err(|_| expected())?;
    u64::try_from(quantity.bytes()).map_err(|_| expected())
}

/// An integer in Go's notation: decimal, `0x`, `0o` (or a leading `0`), `0b`, with `_` between digits.
///
/// # Errors
/// When the text is no whole number that fits.
pub fn integer(text: &str) -> Result<i64, String> {
    let wrong = || "it is a whole number".to_owned();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let body = body.strip_prefix('_').filter(|_| radix != 10).unwrap_or(body);
    if body.ends_with('_') || body.starts_with(['_', '-', '+']) || body.contains("__") {
        return Err(wrong());
    }
    let number = i128::from_str_radix(&body.replace('_', ""), radix).map_err(|_| wrong())?;
    i64::try_from(if negative { -number } else { number }).map_err(|_| wrong())
}

/// A number as Go reads an `int32`.
///
/// # Errors
/// When the text is no number, or one that needs more bits.
pub fn int32(text: &str) -> Result<i32, String> {
    i32::try_from(integer(text)?).map_err(|_| "the number is too large".to_owned())
}

/// A count that may be zero.
///
/// # Errors
/// When the text is no whole number or negative.
pub fn count(text: &str) -> Result<u32, String> {
    u32::try_from(integer(text)?).map_err(|_| "it is a whole number, zero or more".into())
}

/// A number of workers or the like: at least one.
///
/// # Errors
/// When the text is no whole number of at least one.
pub fn at_least_one(text: &str) -> Result<std::num::NonZeroU32, String> {
    let number = count(text)?;
    std::num::NonZeroU32::new(number).ok_or_else(|| "it must be at least 1".into())
}

/// A rate per second.
///
/// # Errors
/// When the text is no finite number.
pub fn rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("it is a number".into()),
    }
}

/// A unix socket: a bare path or `unix://` and a path.
///
/// # Errors
/// When the address is of another kind or empty.
pub fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if path.is_empty() {
        return Err("the path of the socket is missing".into());
    }
    if path.contains("://")
        || ["tcp:", "dns:", "ipv4:", "ipv6:"].iter().any(|s| path.starts_with(s))
    {
        return Err("only a path or unix:///path is supported".into());
    }
    Ok(PathBuf::from(path))
}

/// An address to listen on in Go's form, where `:8080` means every interface.
///
/// # Errors
/// When there is no port.
pub fn listen_address(text: &str) -> Result<String, String> {
    let wrong = || "it is HOST:PORT or :PORT".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    port.parse::<u16>().map_err(|_| wrong())?;
    Ok(if host.is_empty() { format!("0.0.0.0:{port}") } else { text.to_owned() })
}

/// `Name=bool,Name=bool`, as Go's component-base reads feature gates.
///
/// # Errors
/// On an item without `=` or with a value that is no boolean.
pub fn switches(text: &str) -> Result<Vec<(String, bool)>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| {
            let (name, value) = item
                .split_once('=')
                .ok_or_else(|| format!("`{item}` lacks its =true or =false"))?;
            let on = boolean(value.trim()).map_err(|why| format!("`{item}`: {why}"))?;
            Ok((name.trim().to_owned(), on))
        })
        .collect()
}

/// `key:value,key:value`, as the sidecars read lease labels.
///
/// # Errors
/// On an item that has not exactly one colon.
pub fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    if text.is_empty() {
        return Ok(labels);
    }
    for item in text.split(',') {
        match item.split(':').collect::<Vec<_>>()[..] {
            [key, value] => labels.insert(key.trim().to_owned(), value.trim().to_owned()),
            _ => return Err(format!("malformed item in list of labels: {item}")),
        };
    }
    Ok(labels)
}

/// A name that Kubernetes takes for a node: lower-case letters, digits, `-` and `.`.
///
/// # Errors
/// When it is empty, too long, or has other characters.
pub fn node_name(text: &str) -> Result<String, String> {
    let part_ok = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if text.len() <= 253 && text.split('.').all(part_ok) {
        return Ok(text.to_owned());
    }
    Err("a node name has lower-case letters, digits, - and . only, and begins and ends with a letter or digit".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans() {
        for word in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(word), Ok(true), "{word}");
        }
        for word in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(word), Ok(false), "{word}");
        }
        for word in ["", "yes", "on", "tRUE", "2", " true"] {
            assert!(boolean(word).is_err(), "{word}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("0", 0),
            ("15s", 15_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h2m3.5s", 3_723_500),
            (".5s", 500),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "15", "s", "1d", "-1s", "1s 2s", "abc"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0s").is_err());
        assert_eq!(positive_duration("1s"), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn integers() {
        for (text, number) in [
            ("0", 0),
            ("10", 10),
            ("-1", -1),
            ("+7", 7),
            ("0x10", 16),
            ("0X1f", 31),
            ("0b101", 5),
            ("0o17", 15),
            ("017", 15),
            ("1_000", 1000),
            ("0x_ff", 255),
        ] {
            assert_eq!(integer(text), Ok(number), "{text}");
        }
        for text in
            ["", "-", "ten", "1.5", "09", "1__0", "1_", "_1", "0x", "--1", "99999999999999999999"]
        {
            assert!(integer(text).is_err(), "{text}");
        }
        assert!(count("-1").is_err());
        assert_eq!((int32("-0x10"), int32("3000000000").is_err()), (Ok(-16), true));
        assert!(at_least_one("0").is_err());
    }

    #[test]
    fn sockets() {
        for (text, path) in [
            ("/run/csi/socket", "/run/csi/socket"),
            ("unix:///run/csi.sock", "/run/csi.sock"),
            ("unix:/run/csi.sock", "/run/csi.sock"),
            ("csi.sock", "csi.sock"),
        ] {
            assert_eq!(socket(text), Ok(PathBuf::from(path)), "{text}");
        }
        for text in ["", "unix://", "tcp://127.0.0.1:1", "dns:///host", "http://x"] {
            assert!(socket(text).is_err(), "{text}");
        }
    }

    #[test]
    fn listen_addresses() {
        assert_eq!(listen_address(":8080").as_deref(), Ok("0.0.0.0:8080"));
        assert_eq!(listen_address("localhost:0").as_deref(), Ok("localhost:0"));
        assert_eq!(listen_address("[::1]:80").as_deref(), Ok("[::1]:80"));
        for text in ["", "8080", "host:", "host:port", "host:70000"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn gates_and_labels() {
        assert_eq!(
            switches("A=true, B=F,"),
            Ok(vec![("A".to_owned(), true), ("B".to_owned(), false)])
        );
        assert!(switches("A").unwrap_err().contains("`A`"));
        assert!(switches("A=maybe").is_err());

        assert_eq!(labels("a:b,c:d").unwrap().len(), 2);
        assert_eq!(labels("").unwrap().len(), 0);
        // case: csi-protocol/14.22
        assert_eq!(labels("a:b:c").unwrap_err(), "malformed item in list of labels: a:b:c");
        assert!(labels("a").is_err());
    }

    #[test]
    fn node_names() {
        for text in ["a", "node-1", "n1.example.com"] {
            assert_eq!(node_name(text).as_deref(), Ok(text));
        }
        for text in ["", "Node", "a_b", "-a", "a-", "a..b", "a/b"] {
            assert!(node_name(text).is_err(), "{text}");
        }
    }
}
