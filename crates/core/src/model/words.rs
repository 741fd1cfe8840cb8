//! The words of the Kubernetes API that rules compare: phases, access modes, policies.

/// Declares one enum per field of the API.
///
/// A word that is not in the list is kept as `Other`, so that objects of a newer API pass
/// through unchanged. The default is the empty text: the field is absent.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($word:ident),* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($word,)*
            /// A word that this version does not know, or nothing at all.
            Other(Box<str>),
        }

        impl $name {
            /// The word as the API writes it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$word => stringify!($word),)*
                    Self::Other(text) => text,
                }
            }

            /// Whether the field is absent.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.as_str().is_empty()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(Box::default())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $(stringify!($word) => Self::$word,)*
                    other => Self::Other(other.into()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Ok(Self::from(&*<std::borrow::Cow<'de, str>>::deserialize(from)?))
            }
        }
    )* };
}

words! {
    /// `status.phase` of a claim.
    ClaimPhase { Pending, Bound, Lost }
    /// `status.phase` of a volume.
    VolumePhase { Pending, Available, Bound, Released, Failed }
    /// `status.phase` of a pod.
    PodPhase { Pending, Running, Succeeded, Failed, Unknown }
    /// One of the `spec.accessModes` of a claim or volume.
    AccessMode { ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod }
    /// What becomes of a volume whose claim is gone.
    ReclaimPolicy { Delete, Retain, Recycle }
    /// What becomes of a driver's snapshot whose content is deleted.
    DeletionPolicy { Delete, Retain }
    /// How a pod sees a volume.
    VolumeMode { Filesystem, Block }
    /// What is wrong with a volume, the worst first.
    VolumeHealthType { DataLoss, Inaccessible, Degraded }
    /// What is wrong with the storage of a node, the worst first.
    StorageHealthType { StorageUnreachable, StorageDegraded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_api_and_unknown_ones_read_back_as_written() {
        for text in ["Bound", "Lost", "Unheard", ""] {
            let json = serde_json::json!(text);
            let phase: ClaimPhase = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(phase, ClaimPhase::from(text));
            assert_eq!(phase.as_str(), text);
            assert_eq!(serde_json::to_value(&phase).unwrap(), json);
        }
        assert_eq!(ClaimPhase::from("Bound"), ClaimPhase::Bound);
        assert!(ClaimPhase::default().is_empty());
        assert!(matches!(ClaimPhase::from("Available"), ClaimPhase::Other(_)));
    }
}
