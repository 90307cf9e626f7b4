//! The JSON Schema of the rule file, generated from the types that it is read into.

use schemars::generate::SchemaSettings;

use crate::schema_types::RuleFileSpec;

/// The schema, as text.
///
/// ```
/// let schema = tidegate_rules::schema();
/// assert!(schema.contains("token_bucket"));
/// ```
pub fn schema() -> String {
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<RuleFileSpec>();
    schema.insert("title".into(), "Rules of Tidegate".into());
    format!("{schema:#}\n", schema = schema.to_value())
}
