package printable

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// YAML returns a document as printable YAML. sigs.k8s.io/yaml makes it of the document in JSON, in which package json leaves control
// characters that a reader of YAML refuses (go.yaml.in/yaml/v2, readerc.go:346): one in an object would cost the whole document.
func YAML(document any) ([]byte, error) {
	encoded, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	if bytes.ContainsFunc(encoded, refused) {
		var escaped []byte
		for _, r := range string(encoded) {
			if refused(r) {
				escaped = appendEscape(escaped, r)
			} else {
				escaped = utf8.AppendRune(escaped, r)
			}
		}
		encoded = escaped
	}
	made, err := yaml.JSONToYAML(encoded)
	if err != nil {
		return nil, err
	}
	made, _ = escape(made, false) // of valid UTF-8: there is no rest
	return made, nil
}

// refused reports whether a reader of YAML refuses a rune of JSON, or takes it for the end of a line.
func refused(r rune) bool { return r >= 0x7f && r <= 0x9f || r == 0xfffe || r == 0xffff }
