//! What can be wrong about a command line.

/// A command line that cannot be run, as one sentence for the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// No flag has this name.
    #[error("unknown flag {flag}{}", did_you_mean(.nearest.as_deref()))]
    UnknownFlag {
        /// The flag as it was typed.
        flag: String,
        /// The known flag that looks most like it.
        nearest: Option<String>,
    },
    /// No program of the binary has this name.
    #[error("unknown command `{name}`{}", did_you_mean(.nearest.as_deref()))]
    UnknownCommand {
        /// What was typed.
        name: String,
        /// The known command that looks most like it.
        nearest: Option<String>,
    },
    /// The official program once had this flag.
    #[error("{flag} was removed from the official program; {advice}")]
    RemovedFlag {
        /// The flag as it was typed.
        flag: String,
        /// What to write instead.
        advice: &'static str,
    },
    /// The last flag lacks its value.
    #[error("{flag} needs a value: write {flag}=VALUE")]
    MissingValue {
        /// The flag.
        flag: String,
    },
    /// The value cannot be read or makes no sense.
    #[error("{flag} cannot be `{value}`: {why}")]
    BadValue {
        /// The flag.
        flag: String,
        /// The value as it was typed.
        value: String,
        /// What is expected.
        why: String,
    },
    /// A flag without which the program cannot work.
    #[error("{flag} is required: {why}")]
    Required {
        /// The flag.
        flag: &'static str,
        /// What it is for.
        why: &'static str,
    },
    /// Two values that cannot go together.
    #[error("{0}")]
    Together(String),
    /// Values that the official programs refuse with exit code 1 rather than 2.
    #[error("{0}")]
    AsOfficial(String),
    /// An environment variable that the flags need.
    #[error("the environment variable {variable} is required {why}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// Which flag needs it.
        why: &'static str,
    },
    /// A word where none is expected.
    #[error("unexpected argument `{argument}`{}", .advice.as_deref().map(|text| format!("; {text}")).unwrap_or_default())]
    UnexpectedArgument {
        /// The word.
        argument: String,
        /// What was probably meant.
        advice: Option<String>,
    },
    /// The flag is real, its feature is not there yet.
    #[error("{flag} is not part of this version yet: {what}")]
    FlagNotYet {
        /// The flag, with its value where that matters.
        flag: String,
        /// What is missing.
        what: &'static str,
    },
    /// The program is real upstream, but not there yet.
    #[error("`{name}` is not part of this version yet")]
    ProgramNotYet {
        /// The name that was used.
        name: String,
    },
    /// What is wrong with the flags of one of several programs in a process.
    #[error("{part}: {error}")]
    InPart {
        /// The program.
        part: &'static str,
        /// What it says itself.
        error: Box<UsageError>,
    },
    /// Anything else clap finds.
    #[error("{0}")]
    Other(String),
}

impl UsageError {
    /// A value that [`super::values`] refused.
    pub fn bad_value(flag: &str, value: impl ToString, why: impl ToString) -> Self {
        Self::BadValue { flag: flag.into(), value: value.to_string(), why: why.to_string() }
    }

    /// The exit code of a program that was started like this.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::AsOfficial(_) => 1,
            Self::InPart { error, .. } => error.exit_code(),
            _ => 2,
        }
    }

    /// The sentence for a line that clap refused.
    #[must_use]
    pub fn from_clap(error: &clap::Error) -> Self {
        use clap::error::{ContextKind, ContextValue, ErrorKind};
        // A value parser may refuse with a sentence and an exit code of its own.
        let source = std::error::Error::source(error);
        if let Some(own) = source.and_then(|source| source.downcast_ref::<Self>()) {
            return own.clone();
        }
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => texts.first().cloned(),
            _ => None,
        };
        // clap names an argument with its placeholder, as in `--data-dir <DIR>`.
        let flag = text(ContextKind::InvalidArg)
            .map(|arg| arg.split([' ', '[', '=']).next().unwrap_or_default().to_owned())
            .unwrap_or_default();
        match error.kind() {
            ErrorKind::UnknownArgument if flag.starts_with('-') => {
                Self::UnknownFlag { flag, nearest: text(ContextKind::SuggestedArg) }
            }
            ErrorKind::UnknownArgument => Self::UnexpectedArgument { argument: flag, advice: None },
            ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
                let value = text(ContextKind::InvalidValue).unwrap_or_default();
                if value.is_empty() && error.kind() == ErrorKind::InvalidValue {
                    return Self::MissingValue { flag };
                }
                Self::BadValue { flag, value, why: reason(error) }
            }
            ErrorKind::MissingRequiredArgument => {
                Self::Other(format!("{} is required", list(error.get(ContextKind::InvalidArg))))
            }
            _ => Self::Other(first_line(error)),
        }
    }
}

impl From<std::convert::Infallible> for UsageError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

/// Why clap refused a value: the value parser's own words, or the values it would take.
fn reason(error: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue};
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => format!("it is one of {}", values.join(", ")),
        _ => first_line(error),
    }
}

fn list(value: Option<&clap::error::ContextValue>) -> String {
    match value {
        Some(clap::error::ContextValue::Strings(names)) => names.join(" and "),
        Some(other) => other.to_string(),
        None => "an argument".into(),
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
