//! Tables as kubectl prints them: no borders, columns as wide as their widest cell, three spaces between.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use super::discovery::{array, text};

/// Columns of kubectl are at least six wide, three of them for the gap.
const NARROWEST: usize = 3;

/// Prints tables, and remembers column widths so that later rows of a watch line up with earlier ones.
#[derive(Default)]
pub(super) struct Printer {
    widths: Vec<usize>,
}

impl Printer {
    /// The text of a header and rows; an empty header is left out.
    pub(super) fn text(&mut self, header: &[String], rows: &[Vec<String>]) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        if !header.is_empty() {
            table.set_header(self.padded(header));
        }
        for row in rows {
            table.add_row(self.padded(row));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 3));
        }
        self.remember(header);
        rows.iter().for_each(|row| self.remember(row));
        table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn padded(&self, cells: &[String]) -> Vec<String> {
        let width = |at: usize| self.widths.get(at).copied().unwrap_or_default().max(NARROWEST);
        cells
            .iter()
            .enumerate()
            .map(|(at, cell)| format!("{:<width$}", one_line(cell), width = width(at)))
            .collect()
    }

    fn remember(&mut self, cells: &[String]) {
        self.widths.resize(self.widths.len().max(cells.len()), 0);
        for (width, cell) in self.widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
}

/// A cell never breaks the line.
fn one_line(cell: &str) -> String {
    cell.replace(['\n', '\r', '\t'], " ")
}

/// Which columns of a server's Table to show and how.
#[derive(Default)]
pub(super) struct View {
    pub(super) wide: bool,
    pub(super) with_namespace: bool,
    /// `kind/` before each name, when several kinds are shown.
    pub(super) prefix: Option<String>,
    /// Labels that have columns of their own.
    pub(super) labels: Vec<String>,
    /// Whether a last column shows all labels.
    pub(super) all_labels: bool,
    pub(super) no_headers: bool,
}

/// The parts of a server's Table.
pub(super) struct Columns {
    header: Vec<String>,
    shown: Vec<usize>,
}

impl Columns {
    /// Reads the definitions of a Table.
    pub(super) fn of(table: &Value, view: &View) -> Self {
        let definitions = array(&table["columnDefinitions"]);
        let shown: Vec<usize> = definitions
            .iter()
            .enumerate()
            .filter(|(_, column)| view.wide || column["priority"].as_i64().unwrap_or(0) == 0)
            .map(|(at, _)| at)
            .collect();
        let mut header: Vec<String> =
            shown.iter().map(|at| text(&definitions[*at]["name"]).to_uppercase()).collect();
        if view.with_namespace {
            header.insert(0, "NAMESPACE".into());
        }
        let last = |label: &String| label.rsplit('/').next().unwrap_or_default().to_uppercase();
        header.extend(view.labels.iter().map(last));
        if view.all_labels {
            header.push("LABELS".into());
        }
        if view.no_headers {
            header.clear();
        }
        Self { header, shown }
    }

    /// The header; empty when none is wanted.
    pub(super) fn header(&self) -> &[String] {
        &self.header
    }

    /// The rows of a Table with these columns.
    pub(super) fn rows(&self, table: &Value, view: &View) -> Vec<Vec<String>> {
        array(&table["rows"]).iter().map(|row| self.row(row, view)).collect()
    }

    fn row(&self, row: &Value, view: &View) -> Vec<String> {
        let cells = array(&row["cells"]);
        let mut shown: Vec<String> =
            self.shown.iter().map(|at| cells.get(*at).map(cell).unwrap_or_default()).collect();
        if let (Some(prefix), Some(name)) = (&view.prefix, shown.first_mut()) {
            *name = format!("{prefix}/{name}");
        }
        if view.with_namespace {
            shown.insert(0, text(&row["object"]["metadata"]["namespace"]));
        }
        let labels = &row["object"]["metadata"]["labels"];
        shown.extend(view.labels.iter().map(|label| text(&labels[label])));
        if view.all_labels {
            shown.push(all_labels(labels));
        }
        shown
    }
}

/// `app=web,tier=one`.
fn all_labels(labels: &Value) -> String {
    let mut pairs: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", text(value)))
        .collect();
    pairs.sort();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",") }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<none>".into(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table() -> Value {
        json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Access Modes"}, {"name": "VolumeMode", "priority": 1},
            ],
            "rows": [
                {"cells": ["data", "RWO", "Filesystem"], "object": {"metadata": {"namespace": "demo"}}},
                {"cells": ["a-longer-name", "", "Block"], "object": {"metadata": {"namespace": "x"}}},
            ],
        })
    }

    fn shown(view: &View) -> String {
        let columns = Columns::of(&table(), view);
        Printer::default().text(columns.header(), &columns.rows(&table(), view))
    }

    #[test]
    fn looks_like_kubectl() {
        let plain = View::default();
        assert_eq!(
            shown(&plain),
            "NAME            ACCESS MODES\ndata            RWO\na-longer-name\n"
        );
        let all = View {
            wide: true,
            with_namespace: true,
            prefix: Some("pvc".into()),
            ..View::default()
        };
        assert_eq!(
            shown(&all),
            "NAMESPACE   NAME                ACCESS MODES   VOLUMEMODE\n\
             demo        pvc/data            RWO            Filesystem\n\
             x           pvc/a-longer-name                  Block\n"
        );
    }

    #[test]
    fn later_rows_line_up() {
        let mut printer = Printer::default();
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        printer.text(&row(["NAME", "STATUS"]), &[row(["a-long-name", "Pending"])]);
        assert_eq!(printer.text(&[], &[row(["b", "Bound"])]), "b             Bound\n");
    }
}
