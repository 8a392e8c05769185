//! Invitations as QR codes, for a terminal.

use anyhow::Context;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

/// Returns the QR code of a text, with two modules per character.
///
/// # Errors
/// The text is too long for a QR code.
pub(crate) fn code(text: &str) -> anyhow::Result<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).context("too long for a QR code")?;
    // Light modules are drawn, because terminals are dark.
    Ok(code
        .render::<Dense1x2>()
        .dark_color(Dense1x2::Light)
        .light_color(Dense1x2::Dark)
        .build())
}
