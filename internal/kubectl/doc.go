// Package kubectl hides the commands of the kubectl plugin: their flags, which objects they read, and how they print what the
// diagnosis found.
package kubectl
