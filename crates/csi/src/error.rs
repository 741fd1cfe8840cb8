//! What a failed call means for its caller.
//!
//! The table in [`classify`] is the only place that turns a status code into a meaning. Everything else
//! asks [`CsiError::is_final`] and [`CsiError::is_infeasible`].

use std::error::Error as _;

use tonic::{Code, Status};

use crate::Call;

/// What is known after a call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation is certainly not running any more; other parameters may be tried.
    Final,
    /// No verdict: the operation may still be running, so the same request must be repeated.
    Transient,
    /// Final, and repeating the same request soon is pointless.
    Infeasible,
}

/// A failed call.
///
/// The text is exactly what Go clients print, because it ends up in events and in object statuses.
///
/// ```
/// use longshore_csi::{Call, CsiError};
/// use tonic::Status;
///
/// let error = CsiError::new(Call::CreateVolume, Status::invalid_argument("no such pool"));
/// assert_eq!(error.to_string(), "rpc error: code = InvalidArgument desc = no such pool");
/// assert!(error.is_final() && error.is_infeasible());
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum CsiError {
    /// The driver refused: the operation did not and will not happen.
    #[error("{}", status_text(.status))]
    Final {
        call: Call,
        /// The status that the call ended with.
        status: Status,
    },
    /// No verdict: the operation may still be running in the driver.
    #[error("{}", status_text(.status))]
    Transient {
        call: Call,
        /// The status that the call ended with, or that the transport made up.
        status: Status,
    },
    /// The driver refused a request that can never succeed.
    #[error("{}", status_text(.status))]
    Infeasible {
        call: Call,
        /// The status that the call ended with.
        status: Status,
    },
}

impl CsiError {
    /// Classifies a status that `call` ended with.
    pub fn new(call: Call, status: Status) -> Self {
        let status = normalize(status);
        match classify(call, status.code()) {
            Verdict::Final => Self::Final { call, status },
            Verdict::Transient => Self::Transient { call, status },
            Verdict::Infeasible => Self::Infeasible { call, status },
        }
    }

    pub fn call(&self) -> Call {
        match self {
            Self::Final { call, .. }
            | Self::Transient { call, .. }
            | Self::Infeasible { call, .. } => *call,
        }
    }

    /// The status as received, or `Unavailable` when the connection broke.
    pub fn status(&self) -> &Status {
        match self {
            Self::Final { status, .. }
            | Self::Transient { status, .. }
            | Self::Infeasible { status, .. } => status,
        }
    }

    pub fn code(&self) -> Code {
        self.status().code()
    }

    /// The driver's own words, without the code.
    pub fn message(&self) -> &str {
        self.status().message()
    }

    /// The meaning of the failure.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Final { .. } => Verdict::Final,
            Self::Transient { .. } => Verdict::Transient,
            Self::Infeasible { .. } => Verdict::Infeasible,
        }
    }

    /// True when a page of a list cannot be had any more: the list begins again, without a token.
    pub fn is_stale_token(&self) -> bool {
        let call = self.call();
        let lists = [Call::ListVolumes, Call::ListSnapshots, Call::ControllerListVolumeHealth];
        self.code() == Code::Aborted && lists.contains(&call)
    }

    /// True when the operation is certainly not running any more.
    pub fn is_final(&self) -> bool {
        self.verdict() != Verdict::Transient
    }

    /// True when repeating the same request soon is pointless.
    pub fn is_infeasible(&self) -> bool {
        self.verdict() == Verdict::Infeasible
    }
}

/// The one table of meanings: which code says what, for every call.
///
/// `Cancelled`, `DeadlineExceeded`, `Unavailable` and `Aborted` never carry a verdict. `ResourceExhausted`
/// does for CreateVolume only, where it means that another place may be tried at once.
pub fn classify(call: Call, code: Code) -> Verdict {
    use Call::*;
    use Code::*;
    match (call, code) {
        (_, Cancelled | DeadlineExceeded | Unavailable | Aborted) => Verdict::Transient,
        (CreateVolume, ResourceExhausted) => Verdict::Final,
        (_, ResourceExhausted) => Verdict::Transient,
        (CreateVolume | ControllerModifyVolume, InvalidArgument) => Verdict::Infeasible,
        (ControllerExpandVolume | NodeExpandVolume, InvalidArgument | OutOfRange | NotFound) => {
            Verdict::Infeasible
        }
        _ => Verdict::Final,
    }
}

/// Turns what the transport invented into what a Go client reports for a broken connection.
///
/// A status with a source did not come from the driver: it was made on this side of the connection. The same
/// holds for a stream that ended without any status, which happens when the driver resets it.
fn normalize(status: Status) -> Status {
    let local = status.source().is_some();
    let cut = status.code() == Code::Unknown && status.message().starts_with(CUT_STREAM);
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded => status,
        _ if local || cut => Status::unavailable(with_causes(&status)),
        _ => status,
    }
}

/// How tonic's text starts when a response ended without a status.
const CUT_STREAM: &str = "protocol error: missing grpc-status trailer";

fn with_causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// The text Go clients give a status: `rpc error: code = NotFound desc = x`.
pub fn status_text(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", code_name(status.code()), status.message())
}

/// The name Go gives a code, for example `Canceled` with one l.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [Code; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// case: csi-protocol/14.19
    #[test]
    fn every_code_of_every_call_has_the_meaning_of_the_tables() {
        for &call in Call::ALL {
            for code in CODES.into_iter().filter(|code| *code != Code::Ok) {
                let no_verdict = match code as i32 {
                    1 | 4 | 10 | 14 => true,
                    8 => call != Call::CreateVolume,
                    _ => false,
                };
                let infeasible: &[i32] = match call {
                    Call::CreateVolume | Call::ControllerModifyVolume => &[3],
                    Call::ControllerExpandVolume | Call::NodeExpandVolume => &[3, 11, 5],
                    _ => &[],
                };
                let error = CsiError::new(call, Status::new(code, "x"));
                assert_eq!(error.is_final(), !no_verdict, "{call} {code:?}");
                assert_eq!(
                    error.is_infeasible(),
                    infeasible.contains(&(code as i32)),
                    "{call} {code:?}"
                );
                assert_eq!((error.call(), error.code(), error.message()), (call, code, "x"));
            }
        }
    }

    #[test]
    fn aborted_lists_have_a_stale_token() {
        for (call, code, stale) in [
            (Call::ControllerListVolumeHealth, Code::Aborted, true),
            (Call::ListVolumes, Code::Aborted, true),
            (Call::ListVolumes, Code::Unavailable, false),
            // The operation is still running.
            (Call::CreateVolume, Code::Aborted, false),
        ] {
            let error = CsiError::new(call, Status::new(code, "x"));
            assert_eq!(error.is_stale_token(), stale, "{call} {code:?}");
        }
    }

    /// case: csi-protocol/14.20
    #[test]
    fn the_text_is_what_go_prints() {
        let names = [
            "OK",
            "Canceled",
            "Unknown",
            "InvalidArgument",
            "DeadlineExceeded",
            "NotFound",
            "AlreadyExists",
            "PermissionDenied",
            "ResourceExhausted",
            "FailedPrecondition",
            "Aborted",
            "OutOfRange",
            "Unimplemented",
            "Internal",
            "Unavailable",
            "DataLoss",
            "Unauthenticated",
        ];
        for (number, (code, name)) in CODES.into_iter().zip(names).enumerate() {
            assert_eq!(code as usize, number);
            assert_eq!(
                status_text(&Status::new(code, "x")),
                format!("rpc error: code = {name} desc = x")
            );
        }
        let error = CsiError::new(Call::DeleteVolume, Status::not_found("x"));
        assert_eq!(error.to_string(), "rpc error: code = NotFound desc = x");
    }

    #[test]
    fn a_status_made_by_the_transport_is_no_verdict() {
        let broken = std::io::Error::other("broken pipe");
        let error = CsiError::new(Call::CreateVolume, Status::from_error(Box::new(broken)));
        assert!(!error.is_final());
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("broken pipe"), "{error}");

        let cut = Status::unknown(format!("{CUT_STREAM}, stream was terminated"));
        assert!(!CsiError::new(Call::CreateVolume, cut).is_final());

        let said = CsiError::new(Call::CreateVolume, Status::unknown("the driver said so"));
        assert!(said.is_final());
    }
}
