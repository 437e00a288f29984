// Package picture draws the SVG pictures of the documents in one style: a white card with a border, which reads on a light and on a
// dark page, and text in the reader's own sans-serif font. A picture needs no font, script or file besides itself.
//
// A writer of SVG cannot measure text: [Card.Write] estimates it with the widths of a wide font, and fails if a text is cut off or
// covers another one: a picture that cannot be read is not written.
package picture
