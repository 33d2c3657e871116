//! The table `broker` that a policy builds its answer with. Each constructor reads its table at once and yields an
//! opaque value, so that faults carry the line of the call.

use std::sync::Arc;

use mlua::userdata::{MetaMethod, UserDataFields};
use mlua::{Lua, Table, UserData, Value};

use super::arguments::{ArgumentRule, Check, number_text};
use super::backend::{self, Backend};
use super::fields::{Fields, Place, Site, kind, number, shown, text};
use super::frozen::Mention;
use super::hooks;
use super::json;
use super::load::Loading;
use super::names::{NamePattern, NameSet};
use super::results::{ContentTypes, HeaderRule, KeyRule, LimitRule, MediaRule, Otherwise, PatternRule, Rule, UriRule};
use super::sandbox::{self, error_at_caller};
use super::url_rule::{UrlRule, host_pattern};
use crate::core::diagnostic::{Diagnostic, Diagnostics, suggestion};

const REDACTED: &str = "[redacted]";

/// What a constructor yields. Lua can hand it on and nothing else.
#[derive(Clone, Debug)]
pub(super) enum Built {
    Backend(Box<Backend>),
    Argument(ArgumentRule),
    Result {
        tools: Option<Vec<Mention>>,
        rule: Rule,
    },
    /// Its faults are recorded already: whoever receives it says nothing more.
    Faulty,
}

impl UserData for Built {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "rule");
    }
}

impl Built {
    pub fn of(value: &Value) -> Option<Self> {
        value.as_userdata()?.borrow::<Self>().ok().map(|built| built.clone())
    }
}

type Read = fn(&mut Fields<'_>) -> Option<Built>;

const CONSTRUCTORS: [(&str, Read); 10] = [
    ("backend", |fields| backend::read(fields).map(|backend| Built::Backend(Box::new(backend)))),
    ("url_rule", |fields| url_rule(fields).map(Built::Argument)),
    ("number_rule", |fields| number_rule(fields).map(Built::Argument)),
    ("string_rule", |fields| string_rule(fields).map(Built::Argument)),
    ("redact_keys", |fields| result(fields, redact_keys)),
    ("redact_headers_in_text", |fields| result(fields, redact_headers)),
    ("redact_text", |fields| result(fields, redact_text)),
    ("limit_text", |fields| result(fields, limit_text)),
    ("rewrite_uri", |fields| result(fields, rewrite_uri)),
    ("image_to_link", |fields| result(fields, image_to_link)),
];

pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let broker = lua.create_table()?;
    for (name, read) in CONSTRUCTORS {
        broker
            .raw_set(name, lua.create_function(move |lua, argument: Value| construct(lua, name, read, &argument))?)?;
    }
    broker.raw_set("default", lua.create_function(|lua, value: Value| Ok(default(lua, &value)))?)?;
    broker.raw_set("import", lua.create_function(super::load::import)?)?;
    let names_of_hooks = hooks::install(lua, &broker)?;
    sandbox::refuse_unknown_names(lua, &broker, move |name| {
        let known = CONSTRUCTORS.map(|(name, _)| name);
        format!(" in broker{}", suggestion(name, known.into_iter().chain(["default", "import"]).chain(names_of_hooks)))
    })?;
    lua.globals().raw_set("broker", broker)
}

fn construct(lua: &Lua, name: &'static str, read: Read, argument: &Value) -> mlua::Result<Built> {
    if Loading::of(lua).is_over {
        return Err(error_at_caller(lua, format_args!("broker.{name} is for the file itself, not for its hooks")));
    }
    let site = site(lua, name).ok_or_else(|| error_at_caller(lua, "broker constructors are called from Lua only"))?;
    let Some(table) = argument.as_table() else {
        let message = format!("broker.{name} takes a table of named fields, got {}", kind(argument));
        return Err(error_at_caller(lua, message));
    };
    let mut faults = Diagnostics::default();
    let built = read_table(&site, table, read, &mut faults);
    Loading::of(lua).faults.extend(faults);
    Ok(built)
}

fn read_table(site: &Site, table: &Table, read: Read, faults: &mut Diagnostics) -> Built {
    let built = {
        let mut fields = Fields::of_constructor(site, table, faults);
        let built = read(&mut fields);
        fields.close();
        built
    };
    built.filter(|_| faults.is_empty()).unwrap_or(Built::Faulty)
}

fn site(lua: &Lua, constructor: &'static str) -> Option<Site> {
    let position = sandbox::position(lua, 1)?;
    let source = Loading::of(lua).source(&position.chunk)?;
    Some(Site { source, constructor, line: position.line })
}

fn default(lua: &Lua, value: &Value) -> Built {
    if let Some(default) = json_scalar(value) {
        return Built::Argument(ArgumentRule {
            required: false,
            default: Some(default),
            check: Check::Anything,
            at: None,
        });
    }
    if let Some(site) = site(lua, "default") {
        let message = format!("broker.default takes a string, a finite number or a boolean, got {}", shown(value));
        Loading::of(lua).faults.push(Diagnostic::new(site.file(), Some(site.line), message));
    }
    Built::Faulty
}

fn json_scalar(value: &Value) -> Option<String> {
    match value {
        Value::Boolean(flag) => Some(flag.to_string()),
        Value::String(_) => text(value).map(|text| json::quote(&text)),
        other => number(other).map(number_text),
    }
}

fn url_rule(fields: &mut Fields<'_>) -> Option<ArgumentRule> {
    let schemes = fields.texts("schemes");
    if schemes.as_ref().is_some_and(Vec::is_empty) {
        fields.fault_of("schemes", "must name at least one scheme");
    }
    let schemes = fields.require("schemes", schemes).unwrap_or_default();
    let mut rule = UrlRule {
        schemes: Vec::new(),
        scheme_is_optional: fields.flag("scheme_optional").unwrap_or(false),
        allows_private_hosts: fields.choice("private_hosts", &[("allow", true), ("deny", false)]).unwrap_or(true),
        hosts: None,
        max_bytes: fields.whole("max_bytes", 1..=u32::MAX).map(|max| max as usize),
    };
    for (place, scheme) in schemes {
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        if !is_scheme {
            fields.fault(&place, format!("must be a URL scheme such as \"https\", got {scheme:?}"));
        }
        rule.schemes.push(scheme.to_ascii_lowercase());
    }
    if let Some(hosts) = fields.texts("hosts") {
        let hosts = hosts
            .into_iter()
            .filter_map(|(place, host)| host_pattern(&host).map_err(|what| fields.fault(&place, what)).ok());
        rule.hosts = Some(hosts.collect());
    }
    Some(ArgumentRule {
        required: fields.flag("required").unwrap_or(false),
        default: None,
        check: Check::Url(Arc::new(rule)),
        at: None,
    })
}

fn number_rule(fields: &mut Fields<'_>) -> Option<ArgumentRule> {
    let (min, max, default) = (fields.number("min"), fields.number("max"), fields.number("default"));
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        fields.fault_of("min", format!("is {min}, more than 'max', which is {max}"));
    }
    if let Some(default) = default
        && (min.is_some_and(|min| default < min) || max.is_some_and(|max| default > max))
    {
        fields.fault_of("default", format!("is {default}, outside of 'min' and 'max'"));
    }
    Some(ArgumentRule {
        required: fields.flag("required").unwrap_or(false),
        default: default.map(number_text),
        check: Check::Number { min, max },
        at: None,
    })
}

fn string_rule(fields: &mut Fields<'_>) -> Option<ArgumentRule> {
    let max_bytes = fields.whole("max_bytes", 0..=u32::MAX).map(|max| max as usize);
    let pattern = fields.text("pattern").and_then(|pattern| regex(fields, &pattern)).map(Arc::new);
    let default = fields.text("default");
    if let Some(default) = &default {
        if max_bytes.is_some_and(|max| default.len() > max) {
            fields.fault_of("default", "is longer than 'max_bytes'");
        }
        if pattern.as_ref().is_some_and(|pattern| !pattern.is_match(default)) {
            fields.fault_of("default", "does not match 'pattern'");
        }
    }
    Some(ArgumentRule {
        required: fields.flag("required").unwrap_or(false),
        default: default.map(|default| json::quote(&default)),
        check: Check::Text { max_bytes, pattern },
        at: None,
    })
}

fn result(fields: &mut Fields<'_>, read: fn(&mut Fields<'_>) -> Option<Rule>) -> Option<Built> {
    let tools = fields.some_texts("tools").map(|names| mentions_of(fields, names));
    let rule = read(fields)?;
    Some(Built::Result { tools, rule })
}

fn redact_keys(fields: &mut Fields<'_>) -> Option<Rule> {
    let replacement = json::quote(&fields.text("replace_with").unwrap_or_else(|| REDACTED.to_owned()));
    let parses_json_text = fields.flag("parse_json_text").unwrap_or(true);
    let keys = names(fields, "keys")?;
    Some(Rule::Keys(Arc::new(KeyRule { keys, replacement, parses_json_text })))
}

fn redact_headers(fields: &mut Fields<'_>) -> Option<Rule> {
    let replace_with = fields.text("replace_with").unwrap_or_else(|| REDACTED.to_owned());
    let names = names(fields, "names")?;
    if let Some(name) = names.iter().find(|name| !name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c)))
    {
        fields.fault_of("names", format!("has {name:?}, but names of headers are letters, digits, '-' and '_'"));
    }
    Some(Rule::Headers(Arc::new(HeaderRule::new(names, replace_with))))
}

fn redact_text(fields: &mut Fields<'_>) -> Option<Rule> {
    let replace_with = fields.text("replace_with").unwrap_or_else(|| REDACTED.to_owned());
    let pattern = fields.text("pattern");
    let pattern = fields.require("pattern", pattern)?;
    let pattern = regex(fields, &pattern)?;
    if pattern.is_match("") {
        fields.fault_of("pattern", "matches the empty text, so it would match everywhere");
    }
    let rule = PatternRule { pattern, replace_with };
    rule.check_groups().unwrap_or_else(|what| fields.fault_of("replace_with", what));
    Some(Rule::Pattern(Arc::new(rule)))
}

fn limit_text(fields: &mut Fields<'_>) -> Option<Rule> {
    let note = fields.text("note").unwrap_or_else(|| "output cut by policy".to_owned());
    let max_bytes = fields.whole("max_bytes", 1..=u32::MAX);
    let max_bytes = fields.require("max_bytes", max_bytes)? as usize;
    Some(Rule::Limit(Arc::new(LimitRule { max_bytes, note })))
}

fn rewrite_uri(fields: &mut Fields<'_>) -> Option<Rule> {
    let (from_prefix, to_prefix) = (fields.text("from_prefix"), fields.text("to_prefix"));
    let from_prefix = fields.require("from_prefix", from_prefix);
    let to_prefix = fields.require("to_prefix", to_prefix);
    let otherwise = fields.choice("otherwise", &[("keep", Otherwise::Keep), ("drop", Otherwise::Drop)]);
    let mut content_types = ContentTypes { resource_link: true, resource: true };
    if let Some(types) = fields.some_texts("content_types") {
        content_types = ContentTypes::default();
        for (place, name) in types {
            match &*name {
                "resource_link" => content_types.resource_link = true,
                "resource" => content_types.resource = true,
                _ => fields.fault(&place, format!("must be \"resource_link\" or \"resource\", got {name:?}")),
            }
        }
    }
    let from_prefix = from_prefix?;
    if from_prefix.is_empty() {
        fields.fault_of("from_prefix", "must not be empty");
    }
    let otherwise = otherwise.unwrap_or(Otherwise::Keep);
    Some(Rule::Uri(Arc::new(UriRule { from_prefix, to_prefix: to_prefix?, otherwise, content_types })))
}

fn image_to_link(fields: &mut Fields<'_>) -> Option<Rule> {
    /// 256 KiB. Clients take a screenshot of a usual size as it is; a page in full is larger.
    const WHEN_BYTES_OVER: u32 = 262_144;
    let when_bytes_over = fields.whole("when_bytes_over", 0..=u32::MAX).unwrap_or(WHEN_BYTES_OVER);
    let mut rule = MediaRule { when_bytes_over: when_bytes_over.into(), images: true, audio: true };
    if let Some(types) = fields.some_texts("content_types") {
        (rule.images, rule.audio) = (false, false);
        for (place, name) in types {
            match &*name {
                "image" => rule.images = true,
                "audio" => rule.audio = true,
                _ => fields.fault(&place, format!("must be \"image\" or \"audio\", got {name:?}")),
            }
        }
    }
    Some(Rule::Media(Arc::new(rule)))
}

/// The names in a field that must not be empty.
fn names(fields: &mut Fields<'_>, field: &'static str) -> Option<NameSet> {
    let names = fields.some_texts(field);
    let names = fields.require(field, names)?;
    Some(names.into_iter().map(|(_, name)| name).collect())
}

/// The tool patterns in a field.
pub(super) fn mentions(fields: &mut Fields<'_>, field: &'static str) -> Option<Vec<Mention>> {
    let names = fields.texts(field)?;
    Some(mentions_of(fields, names))
}

fn mentions_of(fields: &mut Fields<'_>, names: Vec<(Place, String)>) -> Vec<Mention> {
    names.into_iter().filter_map(|(place, name)| mention(fields, place, &name)).collect()
}

pub(super) fn mention(fields: &mut Fields<'_>, place: Place, name: &str) -> Option<Mention> {
    let pattern = pattern(fields, &place, name)?;
    // A list is named as a whole: the pattern itself is in the message.
    let mut field = place.name.split('[').next().unwrap_or_default().to_owned();
    if field == "tools" {
        field = format!("{field} of {}", fields.constructor());
    }
    Some(Mention { pattern, field, file: fields.file().to_owned(), line: place.line })
}

fn pattern(fields: &mut Fields<'_>, place: &Place, text: &str) -> Option<NamePattern> {
    NamePattern::new(text).map_err(|what| fields.fault(place, format!("is not a valid pattern: {what}"))).ok()
}

/// Linear in time whatever the pattern; its compiled size is bounded too.
fn regex(fields: &mut Fields<'_>, pattern: &str) -> Option<regex::Regex> {
    const COMPILED_MAX_BYTES: usize = 1 << 20;
    match regex::RegexBuilder::new(pattern).size_limit(COMPILED_MAX_BYTES).build() {
        Ok(regex) => Some(regex),
        Err(error) => {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
            fields.fault_of("pattern", format!("is not a valid regular expression: {reason}"));
            None
        }
    }
}
