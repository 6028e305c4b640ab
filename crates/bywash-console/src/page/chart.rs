//! Charts: lines over time, as SVG.
//!
//! Colours are for light mode; the style sheet replaces each in dark mode. Screen readers get a
//! description and a table.

use std::collections::BTreeMap;

use chrono::{DateTime, Local, TimeZone};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::format::{NONE, Unit, time_label};

/// Pixels of a chart. SVG scales to the space there is.
const SIZE: (u32, u32) = (560, 220);
/// Pixels left of the plot, for the labels of values, and right of it.
const MARGINS: (u32, u32) = (64, 16);
/// Lines of a chart, each with a colour that the style sheet knows.
pub(super) const LINES: usize = COLOURS.len();
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x0B, 0x62, 0xA8),
    RGBColor(0xB3, 0x55, 0x00),
    RGBColor(0x1B, 0x7F, 0x4B),
    RGBColor(0x7D, 0x46, 0x98),
    RGBColor(0xB3, 0x26, 0x1E),
];
/// The same colours, as in the SVG.
pub(super) const COLOUR_NAMES: [&str; 5] = ["#0B62A8", "#B35500", "#1B7F4B", "#7D4698", "#B3261E"];
const GRID: RGBColor = RGBColor(0xDD, 0xDD, 0xDA);
const TEXT: RGBColor = RGBColor(0x55, 0x55, 0x52);
const NANOS: f64 = 1e9;

/// A line of a chart.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    pub(super) label: String,
    /// Nanoseconds since 1970 and values, by time.
    pub(super) points: Vec<(i64, f64)>,
}

/// Content of a chart.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) unit: Unit,
    /// At most [`LINES`].
    pub(super) lines: Vec<Line>,
    /// First and last nanosecond.
    pub(super) span: (i64, i64),
    /// Nanoseconds between points; where more are missing, a line is broken.
    pub(super) step: i64,
    /// Starts of the server within the span, in nanoseconds, by time.
    pub(super) starts: Vec<i64>,
}

impl Chart {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// The range of values, which includes 0.
    fn bounds(&self) -> (f64, f64) {
        let values = self
            .lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|(_, value)| *value);
        let values = values.filter(|value| value.is_finite());
        let (low, high) = values.fold((0.0, 0.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        });
        if low == high {
            (0.0, self.unit.min_axis())
        } else {
            (low, high)
        }
    }

    /// A description of the lines.
    pub(super) fn words(&self) -> String {
        let lines = self.lines.iter().filter_map(|line| {
            let values = line.points.iter().map(|(_, value)| *value);
            let (_, last) = line.points.last()?;
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            });
            let [low, high, last] = [low, high, *last].map(|value| self.unit.text(value));
            Some(format!("{} from {low} to {high}, now {last}", line.label))
        });
        let mut words: Vec<_> = lines.collect();
        words.extend(self.last_start().map(|at| format!("server started {at}")));
        words.join("; ")
    }

    /// The time of the last start within the span, as people read it.
    pub(super) fn last_start(&self) -> Option<String> {
        let last = self.starts.last()?;
        Some(time_label(local(*last), self.span))
    }

    /// The newest points of all lines by time, at most `max` of each line.
    fn rows(&self, max: usize) -> BTreeMap<i64, Vec<Option<f64>>> {
        let mut rows: BTreeMap<i64, Vec<Option<f64>>> = BTreeMap::new();
        for (index, line) in self.lines.iter().enumerate() {
            for (at, value) in line.points.iter().rev().take(max) {
                rows.entry(*at)
                    .or_insert_with(|| vec![None; self.lines.len()])[index] = Some(*value);
            }
        }
        rows
    }

    /// The newest points of all lines side by side, the newest first.
    pub(super) fn newest(&self, max: usize) -> Vec<(DateTime<Local>, Vec<Option<f64>>)> {
        let rows = self.rows(max).into_iter().rev().take(max);
        rows.map(|(at, values)| (local(at), values)).collect()
    }

    /// The names of the lines, with tabs between them.
    pub(super) fn labels(&self) -> String {
        let labels = self.lines.iter().map(|line| line.label.replace('\t', " "));
        labels.collect::<Vec<_>>().join("\t")
    }

    /// Returns all points for the crosshair, a line each: its pixel from the left, its time, and the values, with tabs between them.
    pub(super) fn points_of_pixels(&self) -> String {
        let (first, last) = (self.span.0 as f64, self.span.1 as f64);
        let width = f64::from(SIZE.0 - MARGINS.0 - MARGINS.1);
        let form = match (last - first) / NANOS {
            seconds if seconds <= 86_400.0 => "%H:%M:%S",
            _ => "%e %b %H:%M",
        };
        let rows = self.rows(usize::MAX).into_iter().map(|(at, values)| {
            let share = ((at as f64 - first) / (last - first)).clamp(0.0, 1.0);
            let pixel = f64::from(MARGINS.0) + width * share;
            let mut row = format!("{pixel:.0}\t{}", local(at).format(form));
            for value in values {
                row.push('\t');
                row.push_str(&value.map_or(NONE.to_owned(), |value| self.unit.text(value)));
            }
            row
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    /// Renders the SVG: lines, numbers and times only.
    pub(super) fn svg(&self) -> String {
        let mut svg = String::new();
        // The backend writes to a string, which cannot fail; a chart that cannot be drawn is left blank.
        if let Err(error) = self.draw(&mut svg) {
            tracing::warn!(chart = self.title, %error, "a chart cannot be drawn");
        }
        svg
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let (low, high) = self.bounds();
        let values = Axis::of_values(low, high, self.unit);
        let times = Axis::of_times(self.span);
        let mut chart = ChartBuilder::on(&root)
            .margin_top(8)
            .margin_right(MARGINS.1)
            .x_label_area_size(24)
            .y_label_area_size(MARGINS.0)
            .build_cartesian_2d(times.clone(), values.clone())?;
        let unit = self.unit;
        let span = self.span;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .label_style(("sans-serif", 12).into_font().color(&TEXT))
            .x_labels(times.ticks.len())
            .y_labels(values.ticks.len())
            .x_label_formatter(&|seconds| time_label(at(*seconds), span))
            .y_label_formatter(&|value| unit.text(*value))
            .draw()?;
        for start in &self.starts {
            let at = *start as f64 / NANOS;
            let ends = vec![(at, values.from), (at, values.to)];
            chart.draw_series([PathElement::new(ends, TEXT.stroke_width(1))])?;
        }
        for (line, colour) in self.lines.iter().zip(COLOURS) {
            for piece in line
                .points
                .chunk_by(|a, b| b.0.saturating_sub(a.0) <= self.step.saturating_mul(3))
            {
                let points = piece.iter().filter(|(_, value)| value.is_finite());
                let points: Vec<_> = points
                    .map(|(at, value)| (*at as f64 / NANOS, *value))
                    .collect();
                if let [point] = points[..] {
                    chart.draw_series([Circle::new(point, 2, colour.filled())])?;
                    continue;
                }
                if self.lines.len() == 1 {
                    chart.draw_series(AreaSeries::new(
                        points.iter().copied(),
                        0.0,
                        colour.mix(0.12),
                    ))?;
                }
                chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            }
        }
        drop(chart);
        root.present()
    }
}

fn at(seconds: f64) -> DateTime<Local> {
    local((seconds * NANOS) as i64)
}

fn local(nanos: i64) -> DateTime<Local> {
    DateTime::from_timestamp_nanos(nanos).with_timezone(&Local)
}

/// A linear axis with given ticks.
#[derive(Debug, Clone)]
struct Axis {
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis with about four round values.
    fn of_values(low: f64, high: f64, unit: Unit) -> Self {
        let step = unit.round_step((high - low) / 4.0);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks: Vec<f64> = (first..=last).map(|tick| tick as f64 * step).collect();
        Self {
            from: first as f64 * step,
            to: last as f64 * step,
            ticks,
        }
    }

    /// An axis with about six times, round ones of the local clock.
    fn of_times((first, last): (i64, i64)) -> Self {
        const STEPS: [i64; 16] = [
            1,
            5,
            15,
            30,
            60,
            120,
            300,
            600,
            900,
            1800,
            3600,
            7200,
            4 * 3600,
            12 * 3600,
            86_400,
            7 * 86_400,
        ];
        let (from, to) = (first as f64 / NANOS, last as f64 / NANOS);
        let wanted = (to - from) / 6.0;
        let largest = STEPS[STEPS.len() - 1];
        let step = STEPS
            .into_iter()
            .find(|step| *step as f64 >= wanted)
            .unwrap_or(largest);
        let many = (wanted / largest as f64).ceil().max(1.0) as i64;
        let step = (step * many) as f64;
        // Round times of the local clock.
        let offset = f64::from(
            Local
                .offset_from_utc_datetime(&at(from).naive_utc())
                .local_minus_utc(),
        );
        let begin = ((from + offset) / step).ceil() * step - offset;
        let ticks = (0..)
            .map(|tick| begin + f64::from(tick) * step)
            .take_while(|tick| *tick <= to)
            .collect();
        Self { from, to, ticks }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        // Clamped: values far outside overflow pixels.
        let share = ((value - self.from) / (self.to - self.from)).clamp(-1.0, 2.0);
        low + (f64::from(high - low) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(i64, f64)>) -> Chart {
        Chart {
            title: "Traffic".to_owned(),
            unit: Unit::Bytes,
            lines: vec![Line {
                label: "read".to_owned(),
                points,
            }],
            span: (1_700_000_000_000_000_000, 1_700_003_600_000_000_000),
            step: 10_000_000_000,
            starts: Vec::new(),
        }
    }

    #[test]
    fn crosshair_has_the_pixel_the_time_and_each_value_of_a_point() {
        let from = 1_700_000_000_000_000_000;
        let mut chart = chart(vec![(from, 1.0), (from + 1_800_000_000_000, 2048.0)]);
        chart.lines.push(Line {
            label: "write\tn".to_owned(),
            points: vec![(from + 3_600_000_000_000, 3.0)],
        });
        let time = |at: i64| local(at).format("%H:%M:%S").to_string();
        let rows = [
            format!("64\t{}\t1 B\t–", time(from)),
            format!("304\t{}\t2 KiB\t–", time(from + 1_800_000_000_000)),
            format!("544\t{}\t–\t3 B", time(from + 3_600_000_000_000)),
        ];
        assert_eq!(chart.points_of_pixels(), rows.join("\n"));
        assert_eq!(chart.labels(), "read\twrite n");
    }

    #[test]
    fn starts_of_the_server_are_vertical_lines_and_in_words() {
        let mut chart = chart(vec![(1_700_000_010_000_000_000, 1.0)]);
        let lines = |chart: &Chart| chart.svg().matches("#555552\" stroke-width=\"1\"").count();
        assert_eq!((lines(&chart), chart.last_start()), (0, None));
        chart.starts = vec![1_700_000_000_000_000_000, 1_700_001_000_000_000_000];
        assert_eq!(lines(&chart), 2, "{}", chart.svg());
        assert!(
            chart.words().contains("server started "),
            "{}",
            chart.words()
        );
    }

    #[test]
    fn gap_breaks_the_line_and_a_lone_point_is_a_dot() {
        let second = 1_000_000_000;
        let from = 1_700_000_000 * second;
        let points = [
            (0, 1.0),
            (10, 2.0),
            (20, 3.0),
            (500, 1.0),
            (900, 4.0),
            (910, 5.0),
        ];
        let svg = chart(
            points
                .map(|(at, value)| (from + at * second, value))
                .to_vec(),
        )
        .svg();
        let drawn = |shape| {
            let shapes = svg.lines().filter(|line| line.starts_with(shape));
            shapes.filter(|line| line.contains(COLOUR_NAMES[0])).count()
        };
        assert_eq!((drawn("<polyline"), drawn("<circle")), (2, 1), "{svg}");
    }

    #[test]
    fn axes_are_finite_for_any_points() {
        for points in [
            vec![],
            vec![(1, f64::NAN)],
            vec![(1, f64::INFINITY), (2, -3.0)],
            vec![(i64::MIN, 1e300), (i64::MAX, -1e300)],
        ] {
            for span in [
                (0, 1),
                (0, i64::MAX),
                (i64::MIN, i64::MAX),
                (-5, 100_000_000_000),
            ] {
                let svg = Chart {
                    span,
                    ..chart(points.clone())
                }
                .svg();
                assert!(
                    svg.ends_with("</svg>\n") && svg.len() < 64 << 10,
                    "{span:?}: {svg}"
                );
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn picture_has_no_style_that_the_content_policy_forbids() {
        let svg = chart(vec![
            (1_700_000_000_000_000_000, 1.0),
            (1_700_000_010_000_000_000, 2.0),
        ])
        .svg();
        assert!(
            !svg.contains("style=") && !svg.contains("<style") && !svg.contains("<script"),
            "{svg}"
        );
    }
}
