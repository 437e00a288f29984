// Package e2e runs the project's main job from end to end: the demo, on each kind
// of node and through each plane. It holds tests only.
package e2e
