//! Tables: what `kubectl get` prints.

mod layout;
mod rows;

use serde_json::{Value, json};

use crate::registry::Resource;
use layout::layout;
pub use rows::cells;

/// The column definitions of a kind.
pub fn columns(resource: &Resource) -> Value {
    if let Some(custom) = &resource.custom {
        let name = json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": format!("Name of the {}.", resource.kind),
        });
        let rest = custom.columns.iter().map(|column| {
            json!({
                "name": column.name, "type": column.kind, "format": column.format,
                "priority": column.priority, "description": column.description,
            })
        });
        return std::iter::once(name).chain(rest).collect();
    }
    layout(resource)
        .iter()
        .map(|(name, kind, format, priority)| {
            json!({
                "name": name, "type": kind, "format": format, "priority": priority,
                "description": format!("{name} of the {}.", resource.kind),
            })
        })
        .collect()
}

/// A table; null columns stand for "as before" in a watch.
pub fn table(columns: Value, rows: Vec<Value>, metadata: Value) -> Value {
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}
