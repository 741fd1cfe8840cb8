//! Tables: what `kubectl get` prints.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::Resource;
use crate::registry::table::Row;

/// The column definitions of a kind.
pub(super) fn columns(resource: &Resource) -> Value {
    let builtin = resource.builtin.iter().flat_map(|(kind, _)| kind.table.columns);
    let builtin = builtin.map(|(name, kind, format, priority)| {
        json!({
            "name": name, "type": kind, "format": format, "priority": priority,
            "description": format!("{name} of the {}.", resource.kind),
        })
    });
    let custom = resource.custom.iter().flat_map(|custom| {
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
        std::iter::once(name).chain(rest)
    });
    builtin.chain(custom).collect()
}

/// The cells of one row.
pub(super) fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Value {
    let row = Row::new(object, now);
    if let Some((kind, _)) = &resource.builtin {
        return (kind.table.cells)(&row);
    }
    let columns = resource.custom.iter().flat_map(|custom| &custom.columns);
    let rest = columns.map(|column| column.cell(object, |time| row.since(time)));
    std::iter::once(json!(row.name)).chain(rest).collect()
}

/// A table; null columns stand for "as before" in a watch.
pub(super) fn table(columns: Value, rows: Vec<Value>, metadata: Value) -> Value {
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}
