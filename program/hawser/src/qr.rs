//! Invitations as QR codes, for a terminal.

use anyhow::Context;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

/// The QR code of a text, two modules in each character.
///
/// # Errors
/// The text is longer than a QR code holds.
pub(crate) fn code(text: &str) -> anyhow::Result<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).context("too long for a QR code")?;
    // Dark modules on a dark terminal: light ones are drawn.
    Ok(code
        .render::<Dense1x2>()
        .dark_color(Dense1x2::Light)
        .light_color(Dense1x2::Dark)
        .build())
}
