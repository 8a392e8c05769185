//! Draws the model of `hawser top`. Names are untrusted; ratatui omits their control characters.

use hawser_host::lines::{Line, lines};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, SparklineBar, Table};

use super::model::{Flow, Model, Rates};
use crate::amounts::{bytes, rate};
use crate::cli_status::heading;

/// The whole terminal.
pub(super) fn draw(model: &mut Model, frame: &mut Frame<'_>) {
    let lines = lines(model.status());
    let notes = notes(model);
    let is_drawn = usize::from(frame.area().height) >= MIN_ROWS + lines.len() * 3 + notes.len();
    let of_line = if is_drawn { 3 } else { 1 };
    let networks = u16::try_from(lines.len() * of_line).unwrap_or(u16::MAX);
    let [top, said, head, middle, below, end] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::try_from(notes.len()).unwrap_or(u16::MAX)),
        Constraint::Length(1),
        Constraint::Length(networks),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());

    let title = if model.status().is_null() {
        String::new()
    } else {
        heading(model.status())
    };
    frame.render_widget(Paragraph::new(title).style(Modifier::BOLD), top);
    frame.render_widget(Paragraph::new(notes), said);
    let heads = ["network", "state", "down", "up", "round trip", "loss up"].map(Cell::new);
    frame.render_widget(table(heads.into(), Modifier::UNDERLINED, head.width), head);
    for (number, line) in lines.iter().enumerate() {
        let row = middle
            .y
            .saturating_add(u16::try_from(number * of_line).unwrap_or(u16::MAX));
        let height = u16::try_from(of_line)
            .unwrap_or(1)
            .min(middle.bottom().saturating_sub(row));
        if height > 0 {
            network(
                model,
                line,
                Rect {
                    y: row,
                    height,
                    ..middle
                },
                frame,
            );
        }
    }
    flows(model, below, frame);
    let keys = if model.is_paused() {
        "FROZEN   space continues   q quits"
    } else {
        "q quits   space freezes   arrows scroll"
    };
    frame.render_widget(Paragraph::new(keys).style(Modifier::DIM), end);
}

fn notes(model: &Model) -> Vec<Text<'static>> {
    let silence = model
        .silence()
        .map(|why| format!("the daemon does not answer: {why}"));
    let notice = model.status()["notice"].as_str();
    let notices = notice.into_iter().flat_map(str::lines).map(ToOwned::to_owned);
    let all = silence.into_iter().chain(notices);
    all.map(|note| Text::styled(note, Color::Yellow)).collect()
}

fn network(model: &Model, line: &Line<'_>, area: Rect, frame: &mut Frame<'_>) {
    let Rates { up, down } = model.rates(&line.name).next().unwrap_or_default();
    let figure = |key: &str| line.figures.and_then(|figures| figures[key].as_f64());
    let or_none = |figure: Option<String>| Cell::new(figure.unwrap_or_else(|| "-".to_owned()));
    let state = Style::new().fg(if line.state == "active" {
        Color::Green
    } else {
        Color::Yellow
    });
    let control = if line.is_control { " *" } else { "" };
    let row = vec![
        Cell::new(format!("{}{control}", line.name)).style(Modifier::BOLD),
        Cell::new(line.state.to_owned()).style(state),
        or_none(line.figures.map(|_| rate(down))),
        or_none(line.figures.map(|_| rate(up))),
        or_none(figure("rtt_ms").map(|trip| format!("{trip:.1} ms"))),
        or_none(figure("loss").map(|loss| format!("{:.1} %", loss * 100.0))),
    ];
    let row_of = |number| Rect {
        y: area.y + number,
        height: 1,
        ..area
    };
    frame.render_widget(table(row, Modifier::empty(), area.width), row_of(0));
    // One scale for both directions.
    let width = usize::from(area.width);
    let most = model
        .rates(&line.name)
        .take(width)
        .map(|rates| rates.up.max(rates.down));
    let most = most.max().unwrap_or(0).max(MIN_SCALE_BPS);
    let bars = |of: fn(Rates) -> u64, color| {
        let bars = model
            .rates(&line.name)
            .take(width)
            .map(move |rates| SparklineBar::from(of(rates)));
        let mut bars: Vec<_> = bars.collect();
        bars.reverse();
        Sparkline::default()
            .data(bars)
            .max(most)
            .style(Style::new().fg(color))
    };
    if area.height == 3 {
        frame.render_widget(bars(|rates| rates.down, Color::Cyan), row_of(1));
        frame.render_widget(bars(|rates| rates.up, Color::Magenta), row_of(2));
    }
}

/// A table of one row. A narrow one has the first columns only.
fn table(mut cells: Vec<Cell<'_>>, style: Modifier, width: u16) -> Table<'_> {
    let columns = if width < NARROW { 4 } else { WIDTHS.len() };
    cells.truncate(columns);
    Table::new([Row::new(cells).style(style)], &WIDTHS[..columns])
}

fn flows(model: &Model, area: Rect, frame: &mut Frame<'_>) {
    let (flows, above) = model.flows();
    let is_narrow = area.width < NARROW;
    let row = |flow: &Flow| {
        let mut cells = vec![
            Cell::new(flow.name.clone()),
            Cell::new(bytes(flow.sent_bytes)),
            Cell::new(flow.over.clone()),
        ];
        if !is_narrow {
            cells.push(Cell::new(format!("{}: {}", flow.class, flow.why)).style(Modifier::DIM));
        }
        Row::new(cells)
    };
    let first = match above {
        0 => "flow".to_owned(),
        above => format!("flow ({above} more above)"),
    };
    let heads = [first.as_str(), "sent", "over", "class and reason"];
    let columns = if is_narrow { 3 } else { 4 };
    let heads = Row::new(heads.into_iter().take(columns)).style(Modifier::UNDERLINED);
    // Rows that do not fit are not created.
    let shown = flows.iter().take(area.height.into()).map(row);
    frame.render_widget(Table::new(shown, &FLOW_WIDTHS[..columns]).header(heads), area);
}

/// Width below which a terminal gets fewer columns. Units: characters. Source: our choice, the
/// width of terminals by tradition (VT100).
const NARROW: u16 = 80;
const WIDTHS: [Constraint; 6] = [
    Constraint::Fill(2),
    Constraint::Fill(1),
    Constraint::Length(12),
    Constraint::Length(12),
    Constraint::Length(10),
    Constraint::Length(7),
];
const FLOW_WIDTHS: [Constraint; 4] = [
    Constraint::Fill(3),
    Constraint::Length(9),
    Constraint::Fill(3),
    Constraint::Fill(4),
];
/// Minimum number of rows for the chart. Source: the title, two headings, the keys, and three
/// flows.
const MIN_ROWS: usize = 7;
/// Rate below which a network is drawn as idle. Units: bit/s. Source: our choice; a lower one draws
/// probes as traffic, a higher one hides a call.
const MIN_SCALE_BPS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::{flows, status};
    use super::*;

    fn drawn(model: &mut Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(model, frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        let rows = cells.chunks(width.into());
        rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect())
            .collect()
    }

    fn busy() -> Model {
        let mut model = Model::default();
        for number in 0..10 {
            model.handle_status(status(number * 10_000_000), &flows(5));
        }
        model
    }

    #[test]
    fn shows_networks_their_past_and_flows() {
        let rows = drawn(&mut busy(), 100, 24);
        assert!(
            rows[0].starts_with("up: hawser0 (100.96.0.2) to hub:443, for 1 min"),
            "{rows:#?}"
        );
        assert!(
            rows[2].contains("fiber *") && rows[2].contains("90.0 Mbit/s"),
            "{rows:#?}"
        );
        assert!(
            rows[2].contains("8.2 ms") && rows[2].contains("1.0 %"),
            "{rows:#?}"
        );
        // From nothing to the most.
        assert!(
            rows[3].starts_with(' ') && rows[3].trim_end().ends_with('█'),
            "{rows:#?}"
        );
        assert!(
            rows[5].starts_with("docker0") && rows[5].contains("not used"),
            "{rows:#?}"
        );
        assert!(
            rows[9].contains("203.0.113.4:443") && rows[9].contains("75 % fiber, 25 % lte"),
            "{rows:#?}"
        );
        assert!(rows[23].contains("q quits"), "{rows:#?}");
    }

    #[test]
    fn a_small_terminal_has_lines_only_and_the_smallest_is_no_error() {
        let rows = drawn(&mut busy(), 60, 8);
        assert!(
            rows[2].contains("fiber") && rows[3].contains("docker0"),
            "{rows:#?}"
        );
        for (width, height) in [(1, 1), (2, 3), (10, 2), (300, 100)] {
            drawn(&mut busy(), width, height);
        }
    }

    #[test]
    fn a_stranger_writes_nothing_to_the_terminal() {
        let mut model = busy();
        let mut status = status(1);
        status["networks"][1]["name"] = "evil\x1b[2Jname\n".into();
        status["notice"] = "a\x07note".into();
        model.handle_status(status, &flows(1));
        let rows = drawn(&mut model, 100, 24).concat();
        assert!(
            !rows.contains(char::is_control) && rows.contains("name"),
            "{rows}"
        );
    }
}
