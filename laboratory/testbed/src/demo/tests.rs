use super::*;

/// Example result of a run, for the pictures.
fn example() -> Demo {
    let wave = |mean: f64, bins: usize| -> Vec<u64> {
        (0..bins)
            .map(|i| (mean * 12_500.0 * (1.0 + 0.2 * (i as f64 / 7.0).sin())) as u64)
            .collect()
    };
    let alone = |n: usize, title: &str, seconds: f64, mbps: f64| {
        let bins = (seconds * 10.0) as usize;
        let mut networks = vec![vec![0; bins]; 3];
        networks[n] = wave(mbps, bins);
        let delivered = wave(mbps * 0.95, bins);
        Download {
            title: title.into(),
            seconds,
            delivered,
            networks,
            longest_gap_ms: 120.0,
            outage: None,
        }
    };
    let mut all = alone(0, ALL, 13.0, 30.0);
    all.networks = vec![wave(30.0, 130), wave(18.0, 130), wave(12.0, 130)];
    all.networks[0][52..82].fill(0);
    all.delivered = (0..130)
        .map(|i| all.networks.iter().map(|n| n[i]).sum::<u64>() * 9 / 10)
        .collect();
    all.outage = Some(Outage {
        network: 0,
        from: 5.2,
        to: 8.2,
        gap_ms: 140.0,
    });
    Demo {
        networks: vec!["Wi-Fi", "LTE", "DSL"],
        size: SIZE,
        downloads: vec![
            alone(0, "Wi-Fi alone", 21.0, 30.0),
            alone(1, "LTE alone", 33.0, 18.0),
            alone(2, "DSL alone", 52.4, 12.0),
            all,
        ],
        steady: None,
        story: ALL_NETWORKS,
    }
}

#[test]
fn the_lte_trace_wanders_within_its_bounds() {
    let text = lte_trace();
    assert_eq!(text, lte_trace(), "the same network every time");
    let mbps: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once(',')?.1.parse::<f64>().ok())
        .map(|bytes| bytes / 125_000.0)
        .collect();
    assert_eq!(mbps.len(), 600);
    assert!(mbps.iter().all(|rate| (4.9..=40.1).contains(rate)));
    let (least, most) = mbps
        .iter()
        .fold((f64::MAX, 0.0f64), |(l, m), r| (l.min(*r), m.max(*r)));
    assert!(most / least > 3.0, "{least}..{most}");
}

#[test]
fn picture_and_page_tell_the_story() {
    let demo = example();
    assert_eq!(demo.headline(), "75 MB in 13.0 s instead of 21.0 s");
    let svg = demo.to_svg();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    assert!(svg.contains("Wi-Fi is dead"));
    let html = demo.to_html();
    assert!(html.contains(&svg) && !html.contains("{rows}") && !html.contains("http-equiv"));
    if let Some(directory) = std::env::var_os("HAWSER_DEMO_EXAMPLE") {
        std::fs::write(std::path::Path::new(&directory).join("example.svg"), svg).expect("writable");
        std::fs::write(std::path::Path::new(&directory).join("example.html"), html).expect("writable");
    }
}

#[test]
fn an_empty_demo_draws_without_trouble() {
    let demo = Demo {
        networks: vec![],
        size: 0,
        downloads: vec![],
        steady: None,
        story: ALL_NETWORKS,
    };
    assert!(demo.to_svg().contains("nothing was measured") && !demo.to_text().is_empty());
}
