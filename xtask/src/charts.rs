//! Charts of `docs/performance.md`, drawn from the tables of results: `cargo xtask charts`.

use std::fmt::Write as _;
use std::fs;

use crate::run::{Failure, doing, root};

/// A chart of ratios to rivals.
struct Chart {
    /// Name of the file in `docs/charts`.
    file: &'static str,
    title: &'static str,
    /// File of results in `bench/results`.
    results: &'static str,
    /// Start of the drawn rows' cases, and the label of each.
    cases: &'static [(&'static str, &'static str)],
    /// Rivals, in the order of the bars. A rival without a row for a case has no bar there.
    rivals: &'static [&'static str],
}

const CHARTS: [Chart; 2] = [
    Chart {
        file: "endpoint.svg",
        title: "Warm GET, 64 connections: time of Bywash beside a rival",
        results: "2026-11-23-endpoint.md",
        cases: &[
            ("warm GET, 4 KiB, 64 connections", "4 KiB"),
            ("warm GET, 64 KiB, 64 connections", "64 KiB"),
            ("warm GET, 1 MiB, 64 connections", "1 MiB"),
            ("warm GET, 16 MiB, 64 connections", "16 MiB"),
        ],
        rivals: &["versitygw", "nginx, sendfile on", "nginx, sendfile off"],
    },
    Chart {
        file: "pin.svg",
        title: "Pin and unpin: time of Bywash beside a rival",
        results: "2026-11-22-memory-core.md",
        cases: &[
            (
                "by key, one hot block, 20 threads",
                "by key, hot block, 20 threads",
            ),
            ("by key, uniform, 20 threads", "by key, uniform, 20 threads"),
            (
                "in hand, one hot block, 2 threads, proven overlap",
                "by handle, hot block, 2 threads",
            ),
            (
                "in hand, one hot block, 20 threads",
                "by handle, hot block, 20 threads",
            ),
            (
                "in hand, uniform, 20 threads",
                "by handle, uniform, 20 threads",
            ),
            ("in hand, uniform, 1 thread", "by handle, uniform, 1 thread"),
        ],
        rivals: &[
            "moka",
            "quick_cache",
            "foyer",
            "mutex a block",
            "CAS if pinned",
            "two uncontended adds",
        ],
    },
];

const WIDTH: f64 = 760.0;
const LABELS: f64 = 250.0;
const ROW: f64 = 18.0;
/// Ratios at the left and the right edge of the logarithmic axis.
const AXIS: [f64; 2] = [0.02, 5.0];
const TICKS: [f64; 8] = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Draws all charts into `docs/charts`.
pub(crate) fn run() -> Result<(), Failure> {
    let folder = root().join("docs/charts");
    fs::create_dir_all(&folder).map_err(doing("making docs/charts"))?;
    for chart in &CHARTS {
        let path = folder.join(chart.file);
        fs::write(&path, draw(chart)?).map_err(doing(format!("writing {}", path.display())))?;
    }
    Ok(())
}

fn draw(chart: &Chart) -> Result<String, Failure> {
    let path = root().join("bench/results").join(chart.results);
    let reading = doing(format!("reading {}", path.display()));
    let results = fs::read_to_string(&path).map_err(reading)?;
    let mut bars = String::new();
    let mut y = 34.0;
    for (case, label) in chart.cases {
        y += 6.0;
        let mut label = Some(label);
        for rival in chart.rivals {
            let Some(ratio) = ratio(&results, case, rival) else {
                continue;
            };
            if let Some(label) = label.take() {
                text(&mut bars, [8.0, y + 12.0], "start", label);
            }
            bar(&mut bars, y, rival, ratio);
            y += ROW;
        }
        if label.is_some() {
            let message = format!("{} has no row of {case}", chart.results);
            return Err(Failure::Missing(message));
        }
    }
    Ok(frame(chart.title, &bars, y + 8.0))
}

/// Finds the ratio of a case to a rival in tables `| case | unit | Bywash | peer | its figure | ratio |`.
fn ratio(results: &str, case: &str, rival: &str) -> Option<f64> {
    let mut rows = results
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let row = rows.find(|cells| cells.get(1) == Some(&case) && cells.get(4) == Some(&rival))?;
    row.get(6)?.parse().ok()
}

/// Returns the place of a ratio on the axis.
fn x(ratio: f64) -> f64 {
    let [low, high] = AXIS.map(f64::ln);
    let share = (ratio.clamp(AXIS[0], AXIS[1]).ln() - low) / (high - low);
    LABELS + share * (WIDTH - LABELS - 200.0)
}

/// Draws a bar from 1 to the ratio: to the left if Bywash takes less time.
fn bar(out: &mut String, y: f64, rival: &str, ratio: f64) {
    let (from, to) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
    let class = if ratio <= 1.0 { "less" } else { "more" };
    let (top, width, height) = (y + 2.0, to - from, ROW - 4.0);
    _ = writeln!(
        out,
        r#"<rect class="{class}" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/>"#
    );
    text(
        out,
        [to + 6.0, y + 12.0],
        "start",
        &format!("{ratio:.2} of {rival}"),
    );
}

fn text(out: &mut String, [x, y]: [f64; 2], anchor: &str, content: &str) {
    _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#
    );
}

fn frame(title: &str, bars: &str, bottom: f64) -> String {
    let height = bottom + 24.0;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="12">
<title>{title}</title>
<style>rect.page {{ fill: #fff }} rect.less {{ fill: #2a7f62 }} rect.more {{ fill: #b3541e }} line {{ stroke: #ccc }} line.one {{ stroke: #333 }}</style>
<rect class="page" width="{WIDTH}" height="{height}"/>
"#
    );
    text(&mut out, [8.0, 16.0], "start", title);
    for tick in TICKS {
        let (x, class) = (x(tick), if tick == 1.0 { "one" } else { "tick" });
        _ = writeln!(
            out,
            r#"<line class="{class}" x1="{x:.1}" y1="30" x2="{x:.1}" y2="{bottom:.1}"/>"#
        );
        text(&mut out, [x, bottom + 16.0], "middle", &tick.to_string());
    }
    out + bars + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_are_those_of_the_results() {
        for chart in &CHARTS {
            let drawn = fs::read_to_string(root().join("docs/charts").join(chart.file)).unwrap();
            assert_eq!(drawn, draw(chart).unwrap(), "run `cargo xtask charts`");
        }
    }

    #[test]
    fn a_case_without_a_row_is_an_error() {
        let chart = Chart {
            cases: &[("warm GET of nothing", "nothing")],
            ..CHARTS[0]
        };
        assert!(draw(&chart).is_err());
    }

    #[test]
    fn a_longer_case_or_another_rival_is_another_row() {
        let table = "| a | ns | 1 | moka | 2 | 0.50 | 1 | met |\n| a, b | ns | 1 | foyer | 4 | 0.25 | | |\n";
        assert_eq!(ratio(table, "a", "moka"), Some(0.5));
        assert_eq!(ratio(table, "a", "foyer"), None);
        assert_eq!(ratio(table, "a, b", "foyer"), Some(0.25));
    }
}
