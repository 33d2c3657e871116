//! The smallest files of their kinds, and what tools, prompts and resources have in common.

use rmcp::model::{ContentBlock, ResourceContents};

/// A PNG of one pixel, base64.
pub const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mNQSFgAAAHEASFcollRAAAAAElFTkSuQmCC";

/// A WAV of a millisecond of silence (8 bit, 8 kHz), base64.
pub const WAV: &str = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQgAAACAgICAgICAgA==";

pub fn image() -> ContentBlock {
    ContentBlock::image(PNG, "image/png")
}

pub fn text_of(uri: &str, mime_type: &str, text: &str) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(mime_type)
}
