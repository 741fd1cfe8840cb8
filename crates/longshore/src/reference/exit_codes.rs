//! Exit codes of all programs.

/// Every exit code, and what it means.
pub(crate) const EXIT_CODES: &[(u8, &str)] = &[
    (
        0,
        "done, or stopped by SIGTERM or SIGINT; under the name `livenessprobe` also that the port is taken",
    ),
    (
        1,
        "failed; an error on stderr says at what. Sidecars under an official name also end so when they lose their lease \
         or their driver, and for values that the official program refuses so",
    ),
    (2, "wrong usage; nothing was begun"),
    (
        101,
        "a defect: a panic that leaves nothing to go on with, such as one of a cache; what is running is left as it is",
    ),
    (
        255,
        "`resizer`, as csi-resizer: the driver can neither expand volumes nor change their attributes",
    ),
];

/// What ends with other codes.
pub(crate) const EXCEPTION: &str = "`exec` ends with the exit code of the command in the container: 137 when SIGKILL or the end of the container ended it.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::UsageError;

    #[test]
    fn refused_command_lines_end_with_a_listed_code() {
        let refusals = [
            UsageError::Other(String::new()),
            UsageError::AsOfficial(String::new()),
            UsageError::ProgramNotYet { name: String::new() },
        ];
        for refusal in refusals {
            let code = refusal.exit_code();
            assert!(EXIT_CODES.iter().any(|(listed, _)| *listed == code), "{code} is not listed");
        }
    }
}
