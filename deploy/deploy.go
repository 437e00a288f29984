// Package deploy holds the documents with which belay's components are installed. The lab applies
// the very rules (RBAC) that are shipped, so that a right that is missing shows in it first.
package deploy

import "embed"

// Files are the folders beside this file, one per component.
//
//go:embed belay-*/*.yaml
var Files embed.FS
